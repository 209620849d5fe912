// Whether a model and what passes through it fit into the memory at hand, asked before any of it is allocated. What
// cannot fit is an mhla::Error with the estimate, part by part. All estimates are lower bounds.
#pragma once

#include <string>

#include "mhla/models/model_size.h"
#include "mhla/train/options.h"

namespace mhla::train {

// `what` opens the error: "train lm". `loaded`: numbers of a batch that a loader holds ready on the host.
void expect_training_fits(const std::string& what, const ModelSize& size, const TrainOptions& options,
                          double loaded = 0);

// A model without gradients, `batch` samples at a time. `more`: bytes on the host besides, such as the file of weights.
void expect_inference_fits(const std::string& what, const ModelSize& size, std::int64_t batch,
                           const TrainOptions& options, double more = 0, const char* of = "file of weights");

}  // namespace mhla::train
