#include "mhla/models/text_encoder/gemma2_recorded.h"

#include "mhla/models/text_encoder/gemma2.h"

namespace mhla {
namespace {

// In f32 whatever the case has: as the encoder always runs on a CPU.
Weights gemma2(const RecordedCase& c) {
  c.expect_keys({"names", "selected", "attention", "vocab_size", "hidden_size", "intermediate_size",
                 "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar",
                 "sliding_window", "attn_logit_softcapping", "rms_norm_eps", "rope_theta", "hidden_activation",
                 "layer_types"});
  const torch::NoGradGuard no_gradient;
  Gemma2 model(parse_gemma2_config(c.config, "metadata"));
  const torch::Tensor ids = c.index("in.ids"), mask = c.index("in.mask");
  model->to(ids.device());
  load_published(*model, c.weights("param."));
  std::vector<torch::Tensor> states;
  const torch::Tensor out = model->forward(ids, mask, &states);
  const SelectedStates selected = select_states(out, mask, ids.size(1) / 2);
  return {{"out", out},
          {"out.embedded", states[0]},
          {"out.layer1", states[1]},
          {"out.selected", selected.states},
          {"out.selected_mask", selected.mask}};
}

}  // namespace

RecordedFamilies gemma2_recorded() { return {{"gemma2", gemma2}}; }

}  // namespace mhla
