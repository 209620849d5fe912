// CLIP as a network of `mhla eval images`: embeddings of images, and of the prompts they were made for.
#pragma once

#include "apps/engine/image_judge.h"

namespace mhla::apps {

// A folder with model.safetensors, config.json and tokenizer.json, as transformers has it.
std::unique_ptr<ImageJudge> open_clip_judge(const std::string& folder, const std::string& device);

}  // namespace mhla::apps
