// A denoiser that starts from the weights of another one.
#pragma once

#include "mhla/diffusion/generation_config.h"
#include "mhla/train/diffusion/diffusion_model.h"
#include "mhla/train/init_source.h"

namespace mhla::train {

// Gives `model` the weights of the source. Another number of classes gets new embeddings of classes, another image size
// or other blocks are resized, softmax or linear attention becomes MHLA or linear attention, as `mhla convert` does it.
// Of SANA the attention and its blocks are changed alike, under any of its names; linear attention becomes the same
// function up to eps where the model's mix_init is uniform.
// Returns what was changed, a line each. What does not fit is refused by the name of the field or the tensor.
// `generation`: the process that is trained; that of the source may be another.
std::vector<std::string> start_from(const DiffusionModel& model, const InitSource& source,
                                    const GenerationConfig& generation);

// ---- Of one family (diffusion_init.cpp, sana_init.cpp); the weights' part of it

std::vector<std::string> start_dit(DitImpl& model, const InitSource& source);
std::vector<std::string> start_sana(SanaImpl& model, const InitSource& source);

}  // namespace mhla::train
