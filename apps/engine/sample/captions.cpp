#include "apps/engine/sample/captions.h"

#include "mhla/language/caption_tokens.h"
#include "mhla/models/text_encoder/gemma2.h"
#include "mhla/train/lm/run_tokenizer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

const SanaConfig& network_of(const SamplePlan& plan) { return std::get<SanaConfig>(plan.generator.network); }

// Beside the encoder, or in tokenizer/ of a pipeline.
TokenizerPtr tokenizer_of(const fs::path& encoder, std::int64_t vocabulary) {
  const fs::path beside = fs::absolute(encoder / "").parent_path().parent_path() / "tokenizer";
  const bool own = !train::tokenizer_file(encoder).empty() || train::tokenizer_file(beside).empty();
  return train::run_tokenizer("sample", own ? encoder : beside, vocabulary);
}

// One text at a time: its states do not depend on the others.
Conditioning encoded(Gemma2& encoder, const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                     std::string_view instruction, std::int64_t count, torch::Device device) {
  std::vector<torch::Tensor> states, masks;
  for (const std::string& text : texts) {
    const CaptionTokens tokens = caption_tokens(tokenizer, {text}, instruction, count);
    const auto tensor = [&](const std::vector<std::int64_t>& values) {
      return torch::tensor(values, torch::kLong).view({1, tokens.length}).to(device);
    };
    const torch::Tensor mask = tensor(tokens.mask);
    const SelectedStates chosen = select_states(encoder(tensor(tokens.ids), mask), mask, count);
    states.push_back(chosen.states.to(torch::kFloat).cpu()), masks.push_back(chosen.mask.cpu());
  }
  return {{}, torch::cat(states), torch::cat(masks)};
}

}  // namespace

Gemma2Config check_text_encoder(const SamplePlan& plan) {
  const Gemma2Config config = read_gemma2_config(plan.text_encoder / "config.json");
  if (config.hidden_size != network_of(plan).caption_dim)
    fail("sample: ", plan.text_encoder.string(), " has states of ", config.hidden_size, " channels, expected the ",
         network_of(plan).caption_dim, " of ", plan.generator.model());
  (void)tokenizer_of(plan.text_encoder, config.vocab_size);
  return config;
}

Captions encode_captions(const SamplePlan& plan, const std::string& negative, torch::Device device) {
  const torch::NoGradGuard no_gradient;
  Gemma2 encoder = load_gemma2(plan.text_encoder);
  encoder->to(device);
  const TokenizerPtr tokenizer = tokenizer_of(plan.text_encoder, encoder->config().vocab_size);
  const std::int64_t count = network_of(plan).caption_tokens;
  Captions captions;
  captions.prompts = encoded(encoder, *tokenizer, plan.prompts, sana_instruction(), count, device);
  if (plan.guided()) captions.negative = encoded(encoder, *tokenizer, {negative}, {}, count, device);
  return captions;
}

}  // namespace mhla::apps
