// A case has the config.json of a run as metadata and its weights as param.*, under the names of model.safetensors.
//   in.tokens [B, T]; out [B, T, vocab]: the logits of one pass
//   dout [B, T, vocab]: gradients of all weights that learn
//   metadata 'prompt': out.streamed [B, T, vocab], so many tokens at once and then one by one
#include "mhla/models/lm/lm_recorded.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/models/lm/lm.h"

namespace mhla {
namespace {

// The keys that say what ran, not what the model is.
constexpr std::string_view kLmRunKeys[] = {"prompt", "param_case", "note", "seed", "device"};

LmConfig recorded_lm(const RecordedCase& c) {
  JsonValue fields = JsonValue::object();
  for (const JsonValue::Member& m : c.config.members()) {
    if (std::find(std::begin(kLmRunKeys), std::end(kLmRunKeys), m.key) == std::end(kLmRunKeys))
      fields.set(m.key, m.value);
  }
  return parse_lm_config(fields, "metadata");
}

void expect_recorded_shape(const std::string& name, const torch::Tensor& given, torch::IntArrayRef shape) {
  if (given.sizes() != shape) fail(name, " has shape ", c10::str(given.sizes()), ", expected ", c10::str(shape));
}

// Looked at here: a model on a GPU does not.
torch::Tensor recorded_tokens(const RecordedCase& c, const LmConfig& config) {
  const torch::Tensor& given = c.tensor("in.tokens");
  torch::Tensor tokens = c.index("in.tokens");
  if (tokens.dim() != 2 || tokens.numel() == 0)
    fail("in.tokens has shape ", c10::str(tokens.sizes()), ", expected [B, T] with at least one token");
  if (!torch::equal(tokens.to(given.scalar_type()), given)) fail("in.tokens has fractions, expected integers");
  const auto least = tokens.min().item<std::int64_t>(), most = tokens.max().item<std::int64_t>();
  if (least < 0 || most >= config.vocab)
    fail("in.tokens has ", least < 0 ? least : most, ", expected 0 to ", config.vocab - 1);
  return tokens;
}

torch::Tensor streamed(LanguageModelImpl& model, const torch::Tensor& tokens, std::int64_t prompt) {
  if (prompt > tokens.size(1))
    fail("metadata 'prompt' is ", prompt, ", expected at most the ", tokens.size(1), " tokens of in.tokens");
  LmState state = model.begin(tokens.size(0));
  std::vector<torch::Tensor> logits{model.logits(model.stream(tokens.narrow(1, 0, prompt), state))};
  for (std::int64_t t = prompt; t < tokens.size(1); ++t)
    logits.push_back(model.decode(tokens.select(1, t), state).unsqueeze(1));
  return torch::cat(logits, 1);
}

Weights language_model(const RecordedCase& c) {
  const LmConfig config = recorded_lm(c);
  const torch::Tensor tokens = recorded_tokens(c, config);
  const torch::Tensor& table = c.tensor("param.model.embeddings.weight");
  expect_recorded_shape("param.model.embeddings.weight", table, {config.vocab, config.dim});  // before a model is made
  LanguageModel model(config);
  model->to(table.device(), table.scalar_type());
  load_weights(*model, c.weights("param."));
  const torch::Tensor out = model->forward(tokens);
  Weights results{{"out", out}};
  if (c.config.contains("prompt")) results["out.streamed"] = streamed(*model, tokens, c.integer("prompt"));
  if (!c.has("dout")) return results;
  expect_recorded_shape("dout", c.tensor("dout"), out.sizes());
  out.backward(c.tensor("dout"));
  for (const auto& [name, value] : gradients_of(*model))
    if (value.defined()) results["grad.param." + name] = value;  // a mix that does not learn has none
  return results;
}

}  // namespace

RecordedFamilies lm_recorded() { return {{"lm", language_model}}; }

}  // namespace mhla
