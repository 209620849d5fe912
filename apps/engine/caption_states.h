// Captions as a text-to-image model takes them: states of Gemma-2, SANA's instruction before every prompt.
#pragma once

#include <filesystem>

#include "mhla/io/text/tokenizer.h"
#include "mhla/models/denoiser.h"
#include "mhla/models/text_encoder/gemma2.h"

namespace mhla::apps {

// The encoder's, or tokenizer/ of the pipeline that the encoder lies in.
std::filesystem::path caption_tokenizer_folder(const std::filesystem::path& encoder);
// Of that folder. Errors open with `command`.
TokenizerPtr caption_tokenizer(const std::string& command, const std::filesystem::path& encoder, std::int64_t vocab);

// Refuses texts whose ends the image model would not see. `instruction`: what is put before each.
void expect_whole_captions(const std::string& command, const Tokenizer& tokenizer,
                           const std::vector<std::string>& texts, std::string_view instruction, std::int64_t tokens);

class CaptionEncoder {
 public:
  CaptionEncoder(const std::string& command, const std::filesystem::path& folder, std::int64_t tokens,
                 torch::Device device);
  // Captions and mask on the host, f32. One text at a time: its states do not depend on the others.
  Conditioning prompts(const std::vector<std::string>& texts);  // with the instruction
  Conditioning plain(const std::vector<std::string>& texts);    // without: what guidance leads away from

 private:
  Conditioning encoded(const std::vector<std::string>& texts, std::string_view instruction);
  Gemma2 encoder_;
  TokenizerPtr tokenizer_;
  std::int64_t tokens_;
  torch::Device device_;
};

}  // namespace mhla::apps
