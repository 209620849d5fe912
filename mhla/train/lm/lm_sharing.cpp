#include "mhla/train/lm/lm_sharing.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/models/lm/lm_attention.h"
#include "mhla/train/lm/lm_data.h"

namespace mhla::train {
namespace {

ops::PhaseOptions whole_sequence(const LmConfig& network, std::int64_t context) {
  ops::PhaseOptions whole;
  whole.causal = true, whole.layout = Layout::line(network.chunk), whole.tokens = context;
  whole.normalizer = Normalizer::kNone;
  return whole;
}

ops::ContextPlan sharing_of(const LmOptions& o, const LmConfig& network) {
  const MhlaAttentionOptions layer = mhla_options(network);
  const ops::ContextShape shape{.B = share_of(o.train).each,
                                .H = layer.heads,
                                .Hkv = layer.kv_heads == 0 ? layer.heads : layer.kv_heads,
                                .D = feature_size(layer.features, layer.head_dim),
                                .E = layer.value_dim,
                                .mix_per_head = layer.mix_per_head,
                                .element = o.train.precision == "bf16" ? 2 : 4,
                                .on_cpu = o.train.device == "cpu"};
  return ops::plan_context(shape, whole_sequence(network, o.context > 0 ? o.context : network.context),
                           o.context_parallel, ops::parse_context_method(o.context_method));
}

}  // namespace

void place_sequences(LmOptions& o) {
  const int ranks = o.train.place.ranks;
  if (o.context_parallel < 1) fail("train: context_parallel is ", o.context_parallel, ", expected at least 1");
  if (ranks % o.context_parallel != 0)
    fail("train: context_parallel is ", o.context_parallel, " on ", ranks, ranks == 1 ? " process" : " processes",
         ", expected a number that divides the processes");
  o.train.place.context = static_cast<int>(o.context_parallel);
}

void check_sharing(const LmOptions& o, const LmConfig& network) {
  const auto expect = [&](bool good, const char* name, const auto& value, const auto&... expected) {
    if (!good)
      fail("train: ", name, " is ", value, " with context_parallel ", o.context_parallel, ", expected ", expected...);
  };
  expect(network.attention == "mhla", "attention", network.attention, "mhla");
  expect(o.packing == "concatenate", "packing", o.packing,
         "concatenate: a packed document would cross the cut between two processes");
  expect(!is_mqar(o), "data", kMqar, "text: some parts of its sequences have no answers");
  expect(!o.train.cuda_graph, "cuda_graph", "on", "off");
  const std::int64_t context = o.context > 0 ? o.context : network.context;
  const std::int64_t chunks = (context + network.chunk - 1) / network.chunk;
  expect(o.context_parallel <= chunks, "context", context, "at least ", o.context_parallel, " chunks of ",
         network.chunk, " tokens");
  for (std::int64_t rank = 0; rank < o.context_parallel; ++rank) {
    const std::int64_t tokens = ops::tokens_of_rank(network.chunk, context, o.context_parallel, rank).count;
    expect(network.short_conv <= tokens + 1, "short_conv", network.short_conv, "at most ", tokens + 1,
           ": it reads the tokens of one process before, and process ", rank, " has ", tokens);
  }
  labelled("train", [&] { sharing_of(o, network); });
}

std::string describe_sharing(const LmOptions& o, const LmConfig& network) {
  if (o.context_parallel == 1) return {};
  const ops::ContextPlan plan = sharing_of(o, network);
  return str(o.context_parallel, " processes share every sequence by ", ops::name_of(plan.method), " (", plan.reason,
             "): each receives up to ", plan.bytes, " bytes for every layer and batch");
}

}  // namespace mhla::train
