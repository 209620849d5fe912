// What `bench op` can time: the named shapes of docs/benchmarks.md, or sizes given one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/counts.h"
#include "apps/cli/candidates.h"
#include "mhla/kernels/common/layout.h"

namespace mhla::apps {

struct OpShape {
  std::string name;
  OpForm form = OpForm::kBidirectional;
  std::int64_t B = 1, N = 0, H = 1, Hkv = 1, D = 64, E = 64;
  Layout layout;  // causal: line(chunk)

  [[nodiscard]] bool causal() const { return form != OpForm::kBidirectional; }
  [[nodiscard]] std::int64_t blocks() const;  // M
  [[nodiscard]] std::int64_t chunk() const { return layout.block_size; }
  [[nodiscard]] OpSizes sizes() const;
};

// Sizes as the command line gives them; 0 or empty: not given.
struct ShapeOptions {
  std::string names;  // comma separated
  std::string form;
  std::int64_t batch = 0, n = 0, h = 0, hkv = 0, d = 0, e = 0, block_size = 0, chunk = 0;
  std::string grid, blocks;  // "16x16", "21x30x50"
};

std::vector<std::string> shape_names();
OpShape named_shape(const std::string& name);  // throws mhla::Error listing the names

// One shape per name, or the one that the sizes describe. Throws mhla::Error on contradictions.
std::vector<OpShape> shapes_of(const ShapeOptions& options);

std::vector<std::string> split_list(const std::string& text);  // at commas; no empty parts

}  // namespace mhla::apps
