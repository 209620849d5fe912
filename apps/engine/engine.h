// libmhla_engine.so: everything of the program that needs LibTorch, as one table of functions. The program opens it
// when a command asks for it (apps/cli/engine.h), since LibTorch takes most of a second to start and mhla a few
// milliseconds. Program and engine come from one build, so requests and results cross as they are; a library of another
// build is refused by `build` and `layout` before anything else of the table is read. No exception crosses: what went
// wrong is the Outcome.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/engine/requests.h"
#include "apps/engine/rivals/request.h"
#include "apps/engine/sample_video/video_request.h"
#include "apps/engine/video_requests.h"
#include "mhla/io/codecs/image.h"
#include "mhla/testing/tensor.h"
#include "mhla/train/classify/classify_options.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/observer.h"
#include "mhla/train/video/video_options.h"

namespace mhla::apps {

// The compiler stands for the layout of std:: types.
inline constexpr const char* kEngineBuild = "mhla " MHLA_VERSION ", engine 1, compiler " __VERSION__;

struct Outcome {
  int code = 0;        // the exit code of the program (apps/commands.h)
  std::string reason;  // one line where the code is not 0
};

// Text of `mhla generate` as it comes: `texts` of them, then pieces.
class TextObserver : public train::Observer {
 public:
  virtual void begin(std::int64_t texts) = 0;
  virtual void piece(std::int64_t text, const std::string& piece) = 0;
};

// An image that `mhla analyze` drew maps for, as the network saw it.
struct Picture {
  std::int64_t sample = 0;
  std::string item, class_name;
  Image image;
};
class PictureObserver : public train::Observer {
 public:
  virtual void picture(const Picture& picture) = 0;
};

// A golden case of a whole module. Everything but the expected values: in.*, param.* and dout, all f64.
struct GoldenRequest {
  std::string family;   // of apps/verify/golden_families.h
  std::string backend;  // "simd": f32 on the CPU, "ref": f64 on the CPU, "cuda": f32 on device 0
  JsonValue config;
  const std::map<std::string, Tensor>& inputs;  // by their names in the file, without "<case>/"
};

struct Engine {
  const char* build;     // kEngineBuild; stays the first
  std::uint64_t layout;  // engine_layout(); stays the second

  Outcome (*train_classify)(const TrainRequest<train::ClassifyOptions>&, train::Observer&);
  Outcome (*train_lm)(const TrainRequest<train::LmOptions>&, train::Observer&);
  Outcome (*train_diffusion)(const TrainRequest<train::DiffusionOptions>&, train::Observer&);
  Outcome (*train_video)(const TrainRequest<train::VideoOptions>&, train::Observer&);
  Outcome (*launch)(const LaunchRequest&, train::Observer&);
  Outcome (*eval_classify)(const EvalClassifyRequest&, train::Observer&);
  Outcome (*eval_lm)(const EvalLmRequest&, train::Observer&);
  Outcome (*eval_lm_tasks)(const EvalLmRequest&, train::Observer&);
  Outcome (*eval_diffusion)(const EvalDiffusionRequest&, train::Observer&);
  Outcome (*eval_video)(const EvalVideoRequest&, train::Observer&);
  Outcome (*eval_images)(const EvalImagesRequest&, train::Observer&);
  Outcome (*encode_data)(const EncodeRequest&, train::Observer&);
  Outcome (*predict)(const PredictRequest&, train::Observer&);
  Outcome (*export_model)(const ExportRequest&, train::Observer&);
  Outcome (*generate)(const GenerateRequest&, TextObserver&);
  Outcome (*sample_images)(const SampleImagesRequest&, train::Observer&);
  Outcome (*sample_video)(const SampleVideoRequest&, train::Observer&);
  Outcome (*analyze)(const AnalyzeRequest&, PictureObserver&);
  Outcome (*bench_classifier)(const BenchClassifierRequest&, train::Observer&);
  Outcome (*bench_lm)(const BenchLmRequest&, train::Observer&);
  Outcome (*bench_scale)(const BenchScaleRequest&, train::Observer&);
  Outcome (*bench_video)(const BenchVideoRequest&, train::Observer&);

  Outcome (*convert_model)(const ConvertRequest&, ConvertResult&);
  Outcome (*convert_layers)(const ConvertLayersRequest&, ConvertLayersResult&);
  Outcome (*name_layers)(const std::vector<NamedShape>&, std::vector<LayerName>&);

  bool (*golden_runs_on)(const std::string& backend);  // whether this LibTorch can
  // out, init.mixing and every gradient, by name, f64.
  Outcome (*golden_compute)(const GoldenRequest&, std::map<std::string, Tensor>&);

  std::string (*describe)();  // "LibTorch 1.13.1, BLAS /usr/lib/.../libopenblas.so.0"
  Outcome (*time_rival)(const RivalRequest&, RivalResult&);
};

// A number of the names and sizes of all that crosses: it tells two builds of one version apart where that matters.
inline std::uint64_t engine_layout() {
  std::uint64_t hash = sizeof(Engine) + sizeof(Tensor) + sizeof(Image) + sizeof(JsonValue);
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  const auto add_fields = [&]<class Struct>(const Struct& values) {
    add(sizeof(Struct));
    Struct::fields(values, [&]<class Field>(const char* name, const Field&, const char*) {
      for (; *name != 0; ++name) add(static_cast<unsigned char>(*name));
      add(sizeof(Field));
    });
  };
  add_fields(TrainRequest<train::ClassifyOptions>()), add_fields(train::ClassifyOptions());
  add_fields(TrainRequest<train::LmOptions>()), add_fields(train::LmOptions());
  add_fields(TrainRequest<train::DiffusionOptions>()), add_fields(train::DiffusionOptions());
  add_fields(TrainRequest<train::VideoOptions>()), add_fields(train::VideoOptions());
  add_fields(EvalDiffusionRequest()), add_fields(EvalVideoRequest());
  add_fields(EvalClassifyRequest()), add_fields(EvalLmRequest()), add_fields(EvalImagesRequest());
  add_fields(EncodeRequest());
  add_fields(PredictRequest());
  add_fields(ExportRequest()), add_fields(GenerateRequest()), add_fields(AnalyzeRequest());
  add_fields(SampleImagesRequest()), add_fields(SampleVideoRequest());
  add_fields(BenchClassifierRequest()), add_fields(BenchLmRequest()), add_fields(BenchVideoRequest());
  add_fields(BenchScaleRequest());
  add_fields(ConvertRequest()), add_fields(ConvertResult());
  add_fields(ConvertLayersRequest()), add_fields(ConvertLayersResult());
  for (const std::size_t size : {sizeof(LaunchRequest), sizeof(NamedShape), sizeof(LayerName), sizeof(Picture),
                                 sizeof(GoldenRequest), sizeof(RivalRequest), sizeof(RivalResult)})
    add(size);
  return hash;
}

}  // namespace mhla::apps

// The one symbol that the program looks for.
extern "C" const mhla::apps::Engine* mhla_engine(void);
