// A denoiser that starts from the weights of another one.
#pragma once

#include "mhla/diffusion/generation_config.h"
#include "mhla/models/dit/dit.h"
#include "mhla/train/init_source.h"

namespace mhla::train {

// Gives `model` the weights of the source. Another number of classes gets new embeddings of classes, another image size
// or other blocks are resized, softmax or linear attention becomes MHLA or linear attention, as `mhla convert` does it.
// Returns what was changed, a line each. What does not fit is refused by the name of the field or the tensor.
// `generation`: the process that is trained; that of the source may be another.
std::vector<std::string> start_from(DitImpl& model, const InitSource& source, const GenerationConfig& generation);

}  // namespace mhla::train
