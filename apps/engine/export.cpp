#include "apps/engine/export.h"

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/onnx.h"
#include "mhla/models/export/export_onnx.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/open_classifier.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

void export_model(const ExportRequest& request, Observer& observer) {
  const fs::path folder = request.run, out = request.out;
  if (out.extension() != ".onnx") fail("export: --out is ", out.string(), ", expected a file called *.onnx");
  { const AtomicFile begun(out); }  // can it be written?
  const OpenOptions open{.run = request.run, .weights = request.weights, .device = "cpu"};
  const ClassifierRun run = open_classifier("export", open, observer);
  OnnxOptions options;
  if (request.with_normalize) options.mean = run.preprocess.mean, options.std = run.preprocess.std;
  JsonValue names = JsonValue::array();
  for (const std::string& name : read_class_names(folder, run.network.classes)) names.push(name);
  options.metadata = {{"mhla.config", write_json(fields_to_json(run.network))},
                      {"mhla.preprocess", write_json(fields_to_json(run.preprocess))},
                      {"mhla.classes", write_json(names)}};
  export_onnx(*run.model, options, out);
  std::error_code none;  // a pipe has no size
  const std::uintmax_t bytes = fs::is_regular_file(out, none) ? fs::file_size(out, none) : 0;
  observer.row(JsonValue()
                   .set("kind", "export")
                   .set("out", out.string())
                   .set("weights", run.weights.string())
                   .set("model", run.network.model)
                   .set("attention", run.network.attention)
                   .set("opset", OnnxGraph::kOpset)
                   .set("input", request.with_normalize ? "pixels" : "images")
                   .set("channels", run.network.channels)
                   .set("image", JsonValue::array({run.network.image[0], run.network.image[1]}))
                   .set("classes", run.network.classes)
                   .set("preprocess", fields_to_json(run.preprocess))
                   .set("bytes", static_cast<std::int64_t>(bytes)));
}

}  // namespace mhla::apps
