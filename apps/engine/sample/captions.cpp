#include "apps/engine/sample/captions.h"

#include "apps/engine/caption_states.h"
#include "mhla/language/caption_tokens.h"

namespace mhla::apps {
namespace {

const SanaConfig& network_of(const SamplePlan& plan) { return std::get<SanaConfig>(plan.generator.network); }

}  // namespace

Gemma2Config check_text_encoder(const SamplePlan& plan, const std::string& negative) {
  const Gemma2Config config = read_gemma2_config(plan.text_encoder / "config.json");
  if (config.hidden_size != network_of(plan).caption_dim)
    fail("sample: ", plan.text_encoder.string(), " has states of ", config.hidden_size, " channels, expected the ",
         network_of(plan).caption_dim, " of ", plan.generator.model());
  const TokenizerPtr tokenizer = caption_tokenizer("sample", plan.text_encoder, config.vocab_size);
  const std::int64_t tokens = network_of(plan).caption_tokens;
  expect_whole_captions("sample", *tokenizer, plan.prompts, sana_instruction(), tokens);
  if (plan.guided()) expect_whole_captions("sample", *tokenizer, {negative}, {}, tokens);
  return config;
}

Captions encode_captions(const SamplePlan& plan, const std::string& negative, torch::Device device) {
  CaptionEncoder encoder("sample", plan.text_encoder, network_of(plan).caption_tokens, device);
  Captions captions;
  captions.prompts = encoder.prompts(plan.prompts);
  if (plan.guided()) captions.negative = encoder.plain({negative});
  return captions;
}

}  // namespace mhla::apps
