// mhla report as a user runs it, on folders written here: what a training leaves is on the page, and mistakes are
// named.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/video_writer.h"
#include "mhla/io/file.h"
#include "tests/cli/expect.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliReport : public testing::Test {
 protected:
  // The folder of a training: its log, and sheets of samples after some steps.
  std::string run(const std::string& name, const std::string& attention, const std::vector<int>& sheets) {
    const std::string place = folder.path(name);
    fs::create_directories(place + "/samples");
    write_file(place + "/train.json", R"({"task": "diffusion", "data": "cifar10", "lr": 0.001, "seed": 3})");
    write_file(place + "/config.json", R"({"model": "dit_t32", "attention": ")" + attention + R"("})");
    std::string log = R"({"kind": "start", "step": 0})"
                      "\n";
    for (int step = 10; step <= 40; step += 10) {
      log += R"({"kind": "step", "step": )" + std::to_string(step) +
             R"(, "loss": 0.5, "images_per_s": 1234.0})"
             "\n";
      log += R"({"kind": "eval", "step": )" + std::to_string(step) +
             R"(, "mse": 0.0381, "ema_mse": 0.03694})"
             "\n";
    }
    write_file(place + "/log.jsonl", log);
    Image image;
    image.resize(4, 4, 3);
    for (const int step : sheets)
      write_file(place + "/samples/step-000000" + std::to_string(step) + ".png", encode_png(image));
    return place;
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  TemporaryFolder folder;
};

// A power cut may leave half a line.
TEST_F(CliReport, OfARunThatWasKilled) {
  const std::string killed = run("killed", "mhla", {10}), log = killed + "/log.jsonl";
  write_file(log, file_text(log) + R"({"kind": "step", "st)");
  const ProgramRun made = run_program({"report", "--run", killed, "--out", folder.path("report.html")});
  EXPECT_EQ(made.code, 0) << made.err;
}

TEST_F(CliReport, ShowsCurvesSamplesMetricsAndNeighbours) {
  const std::string mhla = run("mhla", "mhla", {10, 20, 30, 40, 50, 60}), soft = run("soft", "softmax", {40});
  write_file(mhla + "/metrics.jsonl",
             R"({"kind": "metric", "metric": "fid", "value": 12.3456, "images": 10000, "features": "classifier a", )"
             R"("reference": "cifar10@test"})"
             "\n"
             R"({"kind": "nearest", "sample": "a", "training": "b"})"
             "\n");
  Image image;
  image.resize(2, 2, 3);
  write_file(mhla + "/nearest.png", encode_png(image));
  const ProgramRun made = run_program({"report", "--run", mhla, soft, "--out", folder.path("page.html"), "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string page = file_text(folder.path("page.html"));
  for (const char* part : {"Training loss", "Held out: mse", "averaged weights", "0.03694", "1234", "softmax",
                           "By step: soft", "12.346", "classifier a", "Nearest training images", "cifar10@test"})
    EXPECT_TRUE(has(page, part)) << part;
  // By run: two. By step: four of the six of one, and the one of the other. The neighbours.
  EXPECT_EQ(count(page, "data:image/png;base64,"), 2 + 4 + 1 + 1);
  EXPECT_TRUE(has(page, "mhla, step 60"));
  EXPECT_FALSE(has(page, "mhla, step 50"));
  EXPECT_FALSE(has(page, "http"));  // nothing to load
  EXPECT_EQ(run_program({"report", "--run", mhla}).code, 0);
  EXPECT_EQ(count(file_text(mhla + "/report.html"), "By run"), 0);
}

TEST_F(CliReport, ClipsMoveAndLatencyIsDrawn) {
  const std::string mhla = run("mhla", "mhla", {}), soft = run("soft", "softmax", {});
  std::string log;
  for (int step = 1; step < 4; ++step)
    log += R"({"kind": "step", "loss": 0.5, "clips_per_s": 77.0, "step": )" + std::to_string(step) + "}\n";
  Image image;
  image.resize(4, 4, 3);
  for (const std::string& place : {mhla, soft}) {
    write_file(place + "/log.jsonl", log);
    for (const char* name : {"clip-0000", "clip-0001"}) {
      const auto writer = open_video_writer(place + "/samples/" + name + ".gif", {4, 4, 2, 8.0, {}});
      writer->frame(image), writer->frame(image), writer->end();
    }
  }
  std::string rows;
  for (const char* attention : {"mhla", "softmax"})
    for (const int frames : {17, 81})
      rows +=
          std::string(R"({"model": "wan_1_3b", "rows": 480, "columns": 800, "precision": "bf16", "device": "cuda", )") +
          R"("attention": ")" + attention + R"(", "ms": 12.5, "frames": )" + std::to_string(frames) + "}\n";
  write_file(folder.path("latency.jsonl"), rows);
  const std::string page = folder.path("page.html");
  ASSERT_EQ(run_program({"report", "--run", mhla, soft, "--latency", folder.path("latency.jsonl"), "--out", page}).code,
            0);
  const std::string text = file_text(page);
  EXPECT_EQ(count(text, "data:image/gif;base64,R0lGODlh"), 4);
  for (const char* part : {"clip-0001", "clips/s", "77", "Latency by frames", "wan_1_3b, 480 x 800, bf16, cuda"})
    EXPECT_TRUE(has(text, part)) << part;
  write_file(folder.path("latency.jsonl"), R"({"model": "dit_s_2", "ms": 1.0})");
  expect_refused({"report", "--run", mhla, "--latency", folder.path("latency.jsonl"), "--out", page},
                 {"latency.jsonl: line 1", "of a video model"});
}

TEST_F(CliReport, MistakesAreNamed) {
  expect_refused({"report", "--run", folder.path("none")}, {"none has no train.json"});
  const std::string place = run("mhla", "mhla", {40});
  write_file(place + "/samples/step-00000040.png", "not an image");
  expect_refused({"report", "--run", place}, {"step-00000040.png"});
  EXPECT_FALSE(fs::exists(place + "/report.html"));
  fs::remove(place + "/samples/step-00000040.png");
  write_file(place + "/metrics.jsonl", R"({"kind": "metric", "metric": "fid"})");
  expect_refused({"report", "--run", place}, {"metrics.jsonl: line 1", "metric without"});
  write_file(place + "/metrics.jsonl", "{");
  expect_refused({"report", "--run", place}, {"metrics.jsonl"});
}

}  // namespace
}  // namespace mhla
