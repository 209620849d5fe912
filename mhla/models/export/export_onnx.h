// Image classifiers as ONNX files: DeiT and VLT with MHLA, linear or softmax attention, from configuration and weights.
// Input "images" [batch, channels, rows, columns] f32, output "logits" [batch, classes].
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mhla/models/classify/classifier.h"

namespace mhla {

struct OnnxOptions {
  // Given: the input is called "pixels" and has values from 0 to 1, (x - mean) / std is part of the graph. One value
  // for all channels or one each. Empty: the input is normalised already.
  std::vector<double> mean, std;
  std::map<std::string, std::string> metadata;  // kept in the file
};

// An Error says what the model has that cannot be exported; nothing is written then.
void export_onnx(const Classifier& model, const OnnxOptions& options, const std::filesystem::path& path);

}  // namespace mhla
