// Runs on disk (mhla/train/runs) for Python, as operators on text: no Python header is needed, as for the rest of
// libmhla_torch.so. python/mhla/runs.py makes classes of them.
#include <torch/library.h>

#include <tuple>

#include "mhla/train/runs/run.h"

namespace mhla::train {
namespace {

Run opened(const std::string& folder) { return Run::open("open_run", folder); }

std::string task(std::string folder) { return opened(folder).task(); }

std::tuple<std::vector<std::string>, std::vector<std::int64_t>> checkpoints(std::string folder) {
  std::vector<std::string> paths;
  std::vector<std::int64_t> steps;
  for (const Checkpoint& one : opened(folder).checkpoints()) {
    paths.push_back(one.path.string());
    steps.push_back(one.step);
  }
  return {paths, steps};
}

std::tuple<std::string, std::string, std::vector<std::string>> weights(std::string folder, std::string which) {
  const RunWeights found = opened(folder).weights(which);
  return {found.file.string(), found.prefix, found.warnings};
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def("run_task(str folder) -> str", task);
  m.def("run_checkpoints(str folder) -> (str[], int[])", checkpoints);
  m.def("run_weights(str folder, str which) -> (str, str, str[])", weights);
}

}  // namespace
}  // namespace mhla::train
