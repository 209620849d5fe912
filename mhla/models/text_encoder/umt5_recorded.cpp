#include "mhla/models/text_encoder/umt5_recorded.h"

#include "mhla/core/error.h"
#include "mhla/models/text_encoder/umt5.h"

namespace mhla {
namespace {

// In f32 whatever the case has: as the encoder always runs on a CPU.
Weights umt5_encoder(const RecordedCase& c) {
  c.expect_keys({"names", "param_case", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads",
                 "relative_attention_num_buckets", "relative_attention_max_distance", "layer_norm_epsilon",
                 "feed_forward_proj", "dropout_rate"});
  c.expect_text("names", "transformers");
  if (c.number("dropout_rate", 0.0) != 0.0)
    fail("metadata 'dropout_rate' is ", c.number("dropout_rate", 0.0), ", expected 0");
  Umt5 model(parse_umt5_config(c.config, "metadata"));
  const torch::Tensor ids = c.index("in.ids"), mask = c.has("in.mask") ? c.index("in.mask") : torch::Tensor();
  model->to(ids.device());
  load_published(*model, c.weights("param."));
  const torch::Tensor out = model->forward(ids, mask);
  Weights results{{"out", out}};
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout").to(out.scalar_type()));
  for (const auto& [name, value] : to_published(*model, gradients_of(*model), Umt5Names::kTransformers))
    results["grad.param." + name] = value;
  return results;
}

Weights t5_buckets(const RecordedCase& c) {
  c.expect_keys({"num_buckets", "max_distance", "bidirectional"});
  if (!c.flag("bidirectional", true)) fail("metadata 'bidirectional' is false, expected true");
  return {{"out.bucket",
           umt5_buckets(c.index("in.relative_position"), c.integer("num_buckets"), c.integer("max_distance"))}};
}

}  // namespace

RecordedFamilies umt5_recorded() { return {{"umt5_encoder", umt5_encoder}, {"t5_buckets", t5_buckets}}; }

}  // namespace mhla
