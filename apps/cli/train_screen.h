// What a training shows: on a terminal a bar that is drawn over, and lines for what stays; piped, a line for every row
// of the log. With --json the rows themselves on stdout.
#pragma once

#include <string>

#include "apps/cli/output.h"

namespace mhla::apps {

// "step 120/2000  epoch 1.25  loss 0.5130  accuracy 81.25 %  ...": numbers of a step or an evaluation, in the order of
// the row.
std::string row_text(const JsonValue& row);
std::string bar_of(double share);  // "[=====>    ]  50 %"
// "[=====>    ]  50 %" of step and of, then what the row says but for learning rate and gradient, cut to `columns`. Of
// an evaluation: "[=====>    ]  50 %  evaluating  5000/10000 images".
std::string bar_text(const JsonValue& row, int columns);
// "; length policy extend (extend: tokens 0 to 4095, ...)" of a language model, or nothing where the policy is "none".
std::string length_text(const JsonValue& row);
std::string clock_text(double seconds);  // "0:07", "12:34", "3:05:59"

class TrainScreen {
 public:
  explicit TrainScreen(const Output& out);
  void show(const JsonValue& row, bool progress);

 private:
  const Output& out_;
  bool terminal_;
};

}  // namespace mhla::apps
