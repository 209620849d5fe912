// Prompts as a text-to-image model takes them: states of Gemma-2 with SANA's instruction before every prompt.
#pragma once

#include "apps/engine/sample/sample_plan.h"
#include "mhla/models/text_encoder/gemma2_config.h"

namespace mhla::apps {

struct Captions {
  Conditioning prompts;   // a row for each, on the host
  Conditioning negative;  // one row, without the instruction; undefined without guidance
};

// Checked before anything is loaded: the encoder has the width that the network takes, the tokenizer fits, and no
// prompt is too long.
Gemma2Config check_text_encoder(const SamplePlan& plan, const std::string& negative);
// Loads the encoder, and frees it. `negative`: text, "" as a rule.
Captions encode_captions(const SamplePlan& plan, const std::string& negative, torch::Device device);

}  // namespace mhla::apps
