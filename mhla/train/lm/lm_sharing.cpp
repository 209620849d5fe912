#include "mhla/train/lm/lm_sharing.h"

#include "mhla/core/error.h"
#include "mhla/models/lm/lm_attention.h"
#include "mhla/train/lm/lm_data.h"

namespace mhla::train {

SharedKind shared_kind(const LmOptions& o, const LmConfig& network) {
  const MhlaAttentionOptions layer = mhla_options(network);
  SharedKind kind;
  kind.shape.H = layer.heads, kind.shape.Hkv = layer.kv_heads == 0 ? layer.heads : layer.kv_heads;
  kind.shape.D = feature_size(layer.features, layer.head_dim), kind.shape.E = layer.value_dim;
  kind.shape.mix_per_head = layer.mix_per_head;
  kind.whole.causal = true, kind.whole.normalizer = Normalizer::kNone;
  kind.whole.layout = Layout::line(network.chunk), kind.whole.tokens = o.context > 0 ? o.context : network.context;
  if (network.short_conv > 1) kind.halo = network.short_conv - 1, kind.halo_of = "short_conv";
  return kind;
}

void check_sharing(const LmOptions& o, const LmConfig& network) {
  const auto expect = [&](bool good, const char* name, const auto& value, const auto&... expected) {
    if (!good)
      fail("train: ", name, " is ", value, " with context_parallel ", o.train.context_parallel, ", expected ",
           expected...);
  };
  expect(network.attention == "mhla", "attention", network.attention, "mhla");
  expect(o.packing == "concatenate", "packing", o.packing,
         "concatenate: a packed document would cross the cut between two processes");
  expect(!is_mqar(o), "data", kMqar, "text: some parts of its sequences have no answers");
  (void)sharing_plan(o.train, shared_kind(o, network));
}

}  // namespace mhla::train
