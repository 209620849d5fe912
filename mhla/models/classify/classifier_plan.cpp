#include "mhla/models/classify/classifier_plan.h"

#include <algorithm>

#include "mhla/models/classify/classifier_attention.h"
#include "mhla/models/model_size.h"
#include "mhla/models/parts.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr std::size_t kLinearStages = 2;  // of vlt: those with the configured attention

std::int64_t halved(std::int64_t size) { return (size + 1) / 2; }

double square(std::int64_t side) { return static_cast<double>(side) * static_cast<double>(side); }

// Width of the MLP.
double width_of(const ClassifierConfig& c, std::size_t stage) {
  return static_cast<double>(static_cast<std::int64_t>(c.mlp_ratio * static_cast<double>(c.dims[stage])));
}

AttentionSize attention_size_of(const ClassifierConfig& c, std::string_view attention, std::size_t stage,
                                const Layout& layout) {
  if (c.family == "vlt") return vlt_attention_size(c, attention, stage, layout);
  ClassifierConfig own = c;
  own.attention = attention;
  return deit_attention_size(own, layout);
}

double block_parameters(const ClassifierConfig& c, std::string_view attention, std::size_t stage,
                        const Layout& layout) {
  const auto dim = static_cast<double>(c.dims[stage]);
  const double width = width_of(c, stage);
  double count = attention_size_of(c, attention, stage, layout).parameters();
  if (c.cpe != 0) count += channel_conv_size(dim, square(c.cpe));
  const bool vlt = c.family == "vlt";
  const double norm = !vlt && c.official && attention == "linear" ? dim : 2 * dim;
  count += norm + (vlt ? dim : 0.0);  // with gamma_1
  if (!has_mlp(attention)) return count;
  count += norm + linear_size(dim, width, true) + linear_size(width, dim, true);
  if (vlt) count += dim + channel_conv_size(width, 9);  // gamma_2, dwconv
  return count;
}

double conv3x3_parameters(std::int64_t in, std::int64_t out) {
  return linear_size(9 * static_cast<double>(in), static_cast<double>(out), true);
}

// Everything but the blocks.
double rest_parameters(const ClassifierConfig& c, const std::vector<StagePlan>& plan) {
  const auto first = static_cast<double>(c.dims[0]), classes = static_cast<double>(c.classes);
  if (c.family != "vlt") {
    const Layout& layout = plan[0].layout;
    const double tokens = static_cast<double>(layout.grid[1]) * static_cast<double>(layout.grid[2]);
    return tokens * first + linear_size(static_cast<double>(c.channels) * square(c.patch), first, true) + 2 * first +
           linear_size(first, classes, true);
  }
  const std::int64_t half = std::max<std::int64_t>(1, c.dims[0] / 2);
  const auto final = static_cast<double>(kVltFinal);
  double count = conv3x3_parameters(c.channels, half) + 2 * conv3x3_parameters(half, half) +
                 conv3x3_parameters(half, c.dims[0]) + 2 * (3 * static_cast<double>(half) + first);
  for (std::size_t stage = 0; stage < 3; ++stage)
    count += conv3x3_parameters(c.dims[stage], c.dims[stage + 1]) + 2 * static_cast<double>(c.dims[stage + 1]);
  return count + linear_size(static_cast<double>(c.dims[3]), final, true) + 2 * final +
         linear_size(final, classes, true);
}

}  // namespace

std::vector<StagePlan> plan_of(const ClassifierConfig& c) {
  const bool vlt = c.family == "vlt";
  const auto patches = [&](std::size_t axis) { return (c.pad[axis] != 0 ? c.pad[axis] : c.image[axis]) / c.patch; };
  std::int64_t rows = vlt ? halved(halved(c.image[0])) : patches(0),
               columns = vlt ? halved(halved(c.image[1])) : patches(1);
  std::vector<StagePlan> plan;
  double own = 0, wanted = 0;  // parameters of blocks without an MLP, and of those they stand for
  for (std::size_t stage = 0; stage < c.dims.size(); ++stage, rows = halved(rows), columns = halved(columns)) {
    StagePlan& s = plan.emplace_back();
    s.layout = stage_layout(c, stage, rows, columns);
    s.attention = !vlt || stage < kLinearStages ? std::string_view(c.attention) : "softmax";
    s.depth = c.depths[stage];
    s.block_parameters = block_parameters(c, s.attention, stage, s.layout);
    if (has_mlp(s.attention)) continue;
    const double softmax = block_parameters(c, "softmax", stage, s.layout);
    s.depth = nearest_depth(static_cast<std::int64_t>(s.block_parameters), static_cast<std::int64_t>(softmax), s.depth);
    own += static_cast<double>(s.depth) * s.block_parameters;
    wanted += static_cast<double>(c.depths[stage]) * softmax;
  }
  if (own > 0) {
    double rest = rest_parameters(c, plan);
    for (const StagePlan& s : plan)
      if (has_mlp(s.attention)) rest += static_cast<double>(s.depth) * s.block_parameters;
    expect_matched("make_classifier", c.attention, static_cast<std::int64_t>(rest + own),
                   static_cast<std::int64_t>(rest + wanted));
  }
  return plan;
}

ModelSize size_of(const ClassifierConfig& c) {
  const std::vector<StagePlan> plan = plan_of(c);
  ModelSize size;
  size.parameters = rest_parameters(c, plan);
  const double pixels =
      static_cast<double>(c.channels) * static_cast<double>(c.image[0]) * static_cast<double>(c.image[1]);
  size.kept = size.passing = pixels;
  for (std::size_t stage = 0; stage < plan.size(); ++stage) {
    const StagePlan& s = plan[stage];
    const auto depth = static_cast<double>(s.depth), dim = static_cast<double>(c.dims[stage]);
    const double tokens = static_cast<double>(s.layout.grid[1]) * static_cast<double>(s.layout.grid[2]);
    const double width = has_mlp(s.attention) ? width_of(c, stage) : 0.0;
    const double attention = attention_size_of(c, s.attention, stage, s.layout).kept;
    // Inputs of the norms, of the convolution before them and of the MLP; its middle before and after GELU.
    double block = tokens * ((c.cpe != 0 ? dim : 0.0) + dim + attention + (width > 0 ? 2 * dim + 2 * width : 0.0));
    double passing = tokens * (2 * dim + std::max(attention, 2 * width));
    if (s.attention == "softmax" && TORCH_VERSION_MAJOR < 2) {
      const double pairs = static_cast<double>(c.heads[stage]) * tokens * tokens;
      block += pairs, passing += 2 * pairs;
    }
    size.parameters += depth * s.block_parameters;
    size.kept += depth * block;
    size.passing = std::max(size.passing, pixels + passing);
  }
  return size;
}

}  // namespace mhla
