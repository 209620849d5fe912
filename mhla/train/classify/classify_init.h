// A classifier that starts from the weights of another one.
#pragma once

#include "mhla/models/classify/classifier.h"
#include "mhla/train/init_source.h"

namespace mhla::train {

// Gives `model` the weights of the source. Another number of classes keeps the new head, another image size or other
// blocks are resized, softmax attention becomes MHLA or linear attention, as `mhla convert` does it. Returns what was
// changed, a line each. What does not fit is refused by the name of the field or the tensor.
std::vector<std::string> start_from(Classifier& model, const InitSource& source);

}  // namespace mhla::train
