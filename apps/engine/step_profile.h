// Where the time of a step goes: attention, products, element-wise passes, optimiser, the rest. On a GPU these are
// kernels, sorted by their names, and the time in which none of them runs; on a CPU LibTorch's operators and the parts
// that say their names (RECORD_USER_SCOPE), each without what it calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/train/torch.h"

namespace mhla::apps {

enum class StepPart { kAttention, kProducts, kElementwise, kOptimizer, kCopies, kWaiting };

const char* step_part_name(StepPart part);

// Of a kernel, an operator or a node of autograd. kWaiting: it does nothing itself.
StepPart part_of_kernel(const std::string& name);
StepPart part_of_operator(const std::string& name);

struct StepProfile {
  struct Row {
    std::string name;
    StepPart part;
    double calls = 0, ms = 0;  // of a step
  };
  double ms = 0;          // of a step, by the clock
  std::vector<Row> rows;  // most time first

  [[nodiscard]] double ms_of(StepPart part) const;
  // {"ms": .., "attention": .., ..., "rows": [{"name", "part", "calls", "ms"}, ...]}, at most `most` rows.
  [[nodiscard]] JsonValue json(std::size_t most) const;
};

// Of `steps` runs of `step`, after one that does not count.
StepProfile profile_of(const torch::Device& device, int steps, const std::function<void()>& step);

}  // namespace mhla::apps
