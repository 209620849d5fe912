#include "mhla/models/lm/lm_plan.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/models/lm/lm_attention.h"
#include "mhla/models/model_size.h"
#include "mhla/models/parts.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr std::int64_t kWidthStep = 32;  // of a matched MLP

LmConfig with_softmax(const LmConfig& c) {
  LmConfig softmax = c;
  softmax.attention = "softmax", softmax.official = false;
  return softmax;
}

// Mixing matrices grow with the context and are not counted.
std::int64_t attention_weights(const LmConfig& c) { return static_cast<std::int64_t>(lm_attention_size(c).weights); }

// Width of the MLP that gives a block the parameters of softmax attention's.
std::int64_t matched_width(const LmConfig& c) {
  if (!c.match || !has_mlp(c.attention)) return c.mlp;
  const std::int64_t softmax = attention_weights(with_softmax(c)), more = attention_weights(c) - softmax;
  if (100 * std::abs(more) <= 3 * (softmax + 3 * c.dim * c.mlp)) return c.mlp;
  const std::int64_t steps = std::llround(static_cast<double>(c.mlp - more / (3 * c.dim)) / kWidthStep);
  if (steps < 1)
    fail("config: ", c.attention, " has ", more, " parameters more than softmax attention, which no MLP of ", c.mlp,
         " channels makes up for; expected a wider mlp, or match false");
  return steps * kWidthStep;
}

double block_parameters(const LmConfig& c, std::int64_t width) {
  const auto dim = static_cast<double>(c.dim);
  const double mlp = has_mlp(c.attention) ? dim + 3 * dim * static_cast<double>(width) : 0.0;
  return dim + lm_attention_size(c).parameters() + mlp;
}

double table_parameters(const LmConfig& c) {
  return static_cast<double>(c.vocab) * static_cast<double>(c.dim) * (c.tied ? 1 : 2);
}

}  // namespace

LmPlan plan_of(const LmConfig& c) {
  LmPlan plan;
  plan.width = matched_width(c), plan.depth = c.layers;
  plan.block_parameters = block_parameters(c, plan.width);
  if (c.match && !has_mlp(c.attention)) {
    const double softmax = block_parameters(with_softmax(c), c.mlp), table = table_parameters(c);
    plan.depth =
        nearest_depth(static_cast<std::int64_t>(plan.block_parameters), static_cast<std::int64_t>(softmax), c.layers);
    expect_matched("LanguageModel", c.attention,
                   static_cast<std::int64_t>(table + static_cast<double>(plan.depth) * plan.block_parameters),
                   static_cast<std::int64_t>(table + static_cast<double>(c.layers) * softmax));
  }
  return plan;
}

ModelSize size_of(const LmConfig& c, std::int64_t tokens, bool recompute, bool alone) {
  const LmPlan plan = plan_of(c);
  const auto dim = static_cast<double>(c.dim), depth = static_cast<double>(plan.depth),
             count = static_cast<double>(tokens), width = has_mlp(c.attention) ? static_cast<double>(plan.width) : 0.0;
  const AttentionSize attention = lm_attention_size(c);
  // The inputs of both norms and of the MLP; gate, value and their product.
  double block = count * (dim + attention.kept + (width > 0 ? 2 * dim + 3 * width : 0.0));
  double passing = count * (2 * dim + std::max(attention.kept, 2 * width));
  if (alone && c.attention == "softmax" && TORCH_VERSION_MAJOR < 2) {
    const double pairs = static_cast<double>(c.heads) * count * count;
    block += pairs, passing += 2 * pairs;
  }
  ModelSize size;
  size.parameters = table_parameters(c) + depth * plan.block_parameters + dim;
  size.kept = recompute ? depth * count * dim + block : depth * block;
  size.passing = passing;
  return size;
}

double state_bytes(const LmConfig& c, std::int64_t tokens) {
  const auto count = static_cast<double>(tokens), depth = static_cast<double>(plan_of(c).depth);
  if (c.attention == "softmax") return 4 * depth * 2 * count * static_cast<double>(c.dim);
  if (c.attention != "mhla") return 0;
  const double key = c.expand_k * static_cast<double>(c.dim) / static_cast<double>(c.heads);  // a summary of each chunk
  const double value = c.expand_v * static_cast<double>(c.dim) / static_cast<double>(c.heads);
  const double kv_heads = static_cast<double>(c.kv_heads == 0 ? c.heads : c.kv_heads);
  return 4 * depth * std::floor(count / static_cast<double>(c.chunk)) * kv_heads * key * value;
}

}  // namespace mhla
