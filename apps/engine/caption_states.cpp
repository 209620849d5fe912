#include "apps/engine/caption_states.h"

#include "mhla/io/utf8.h"
#include "mhla/language/caption_tokens.h"
#include "mhla/train/lm/run_tokenizer.h"

namespace mhla::apps {

namespace fs = std::filesystem;

fs::path caption_tokenizer_folder(const fs::path& encoder) {
  const fs::path beside = fs::absolute(encoder / "").parent_path().parent_path() / "tokenizer";
  const bool own = !train::tokenizer_file(encoder).empty() || train::tokenizer_file(beside).empty();
  return own ? encoder : beside;
}

TokenizerPtr caption_tokenizer(const std::string& command, const fs::path& encoder, std::int64_t vocab) {
  return train::run_tokenizer(command, caption_tokenizer_folder(encoder), vocab);
}

void expect_whole_captions(const std::string& command, const Tokenizer& tokenizer,
                           const std::vector<std::string>& texts, std::string_view instruction, std::int64_t tokens) {
  for (const std::string& text : texts)
    if (const std::int64_t over = caption_tokens(tokenizer, {text}, instruction, tokens).left_out[0]; over > 0)
      fail(command, ": '", start_of(text), "' is ", over, over == 1 ? " token" : " tokens",
           " too long for the model, which sees ", tokens, ": leave out the end");
}

CaptionEncoder::CaptionEncoder(const std::string& command, const fs::path& folder, std::int64_t tokens,
                               torch::Device device)
    : encoder_(load_gemma2(folder)), tokens_(tokens), device_(device) {
  tokenizer_ = caption_tokenizer(command, folder, encoder_->config().vocab_size);
  encoder_->to(device);
}

Conditioning CaptionEncoder::prompts(const std::vector<std::string>& texts) {
  return encoded(texts, sana_instruction());
}

Conditioning CaptionEncoder::plain(const std::vector<std::string>& texts) { return encoded(texts, {}); }

Conditioning CaptionEncoder::encoded(const std::vector<std::string>& texts, std::string_view instruction) {
  const torch::NoGradGuard no_gradient;
  std::vector<torch::Tensor> states, masks;
  for (const std::string& text : texts) {
    const CaptionTokens tokens = caption_tokens(*tokenizer_, {text}, instruction, tokens_);
    const auto tensor = [&](const std::vector<std::int64_t>& values) {
      return torch::tensor(values, torch::kLong).view({1, tokens.length}).to(device_);
    };
    const torch::Tensor mask = tensor(tokens.mask);
    const SelectedStates chosen = select_states(encoder_->forward(tensor(tokens.ids), mask), mask, tokens_);
    states.push_back(chosen.states.to(torch::kFloat).cpu()), masks.push_back(chosen.mask.cpu());
  }
  return {{}, torch::cat(states), torch::cat(masks)};
}

}  // namespace mhla::apps
