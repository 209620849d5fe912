// What a training says on a terminal and when piped.
#include "apps/cli/train_screen.h"

#include <gtest/gtest.h>

namespace mhla::apps {
namespace {

TEST(TrainScreen, Clock) {
  EXPECT_EQ(clock_text(0.2), "0:00");
  EXPECT_EQ(clock_text(67), "1:07");
  EXPECT_EQ(clock_text(11159), "3:05:59");
  EXPECT_EQ(clock_text(-1), "0:00");
  EXPECT_EQ(clock_text(1.0 / 0.0), "?");
}

JsonValue step_row(std::int64_t step) {
  return JsonValue()
      .set("kind", "step")
      .set("step", step)
      .set("of", 200)
      .set("epoch", 1.25)
      .set("loss", 0.51299)
      .set("accuracy", 0.8125)
      .set("lr", 1e-3)
      .set("grad_norm", 0.123456)
      .set("images_per_s", 3412.4)
      .set("eta_s", 125.0);
}

TEST(TrainScreen, ALineHasEveryNumberOfItsRow) {
  EXPECT_EQ(row_text(step_row(120)),
            "step 120/200  epoch 1.25  loss 0.5130  accuracy 81.25 %  lr 1.00e-03  grad_norm 0.123  3412 images/s  "
            "2:05 left");
  EXPECT_EQ(row_text(JsonValue().set("kind", "eval").set("step", 7).set("ema_top1", 0.5).set("seconds", 2.04)),
            "step 7  ema_top1 50.00 %  2.0 s");
}

TEST(TrainScreen, TheBarFillsAndIsCutToTheTerminal) {
  EXPECT_EQ(bar_text(step_row(0), 18), "[>         ]   0 %");
  EXPECT_EQ(bar_text(step_row(100), 200),
            "[=====>    ]  50 %  2:05 left  step 100/200  loss 0.5130  accuracy 81.25 %  3412 images/s");
  EXPECT_EQ(bar_text(step_row(200), 18), "[==========] 100 %");
  const JsonValue eval = JsonValue().set("kind", "eval").set("step", 512).set("of", 1024).set("samples", "images");
  EXPECT_EQ(bar_text(eval, 200), "[=====>    ]  50 %  evaluating  512/1024 images");
  EXPECT_EQ(bar_text(eval, 12), "[=====>    ]");
}

}  // namespace
}  // namespace mhla::apps
