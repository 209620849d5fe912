// The table of apps/engine/engine.h: every function with its exceptions turned into an Outcome.
#include "apps/commands.h"
#include "apps/engine/analyze.h"
#include "apps/engine/bench_lm.h"
#include "apps/engine/bench_model.h"
#include "apps/engine/bench_scale.h"
#include "apps/engine/bench_video.h"
#include "apps/engine/classify.h"
#include "apps/engine/diffusion.h"
#include "apps/engine/encode/encode.h"
#include "apps/engine/engine.h"
#include "apps/engine/eval_images.h"
#include "apps/engine/eval_tasks.h"
#include "apps/engine/export.h"
#include "apps/engine/generate.h"
#include "apps/engine/golden/golden.h"
#include "apps/engine/launch.h"
#include "apps/engine/lm.h"
#include "apps/engine/predict.h"
#include "apps/engine/rivals/rivals.h"
#include "apps/engine/sample/sample.h"
#include "apps/engine/sample_video/sample_video.h"
#include "apps/engine/training.h"
#include "apps/engine/video.h"
#include "apps/engine/weights/weights.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/ops/torch_error.h"

namespace mhla::apps {
namespace {

template <class Work>
Outcome outcome_of(const Work& work) {
  try {
    try {
      work();
      return {};
    } catch (const std::filesystem::filesystem_error& error) {
      fail_as(error);
    }
  } catch (const SaidElsewhere& said) {
    return {said.code, ""};
  } catch (const Error& error) {
    return {kCallersMistake, error.what()};
  } catch (const std::exception& error) {
    return {kFailed, ops::short_reason(error)};
  }
}

template <auto work>
struct Guarded;
template <class Request, class Other, void (*work)(const Request&, Other&)>
struct Guarded<work> {
  static Outcome run(const Request& request, Other& other) {
    return outcome_of([&] { work(request, other); });
  }
};

template <auto work>
constexpr auto guarded = &Guarded<work>::run;

}  // namespace
}  // namespace mhla::apps

const mhla::apps::Engine* mhla_engine(void) {
  using namespace mhla;
  using namespace mhla::apps;
  static const Engine engine{
      .build = kEngineBuild,
      .layout = engine_layout(),
      .train_classify = guarded<apps::train_classify>,
      .train_lm = guarded<apps::train_lm>,
      .train_diffusion = guarded<apps::train_diffusion>,
      .train_video = guarded<apps::train_video>,
      .launch = guarded<apps::launch>,
      .eval_classify = guarded<apps::eval_classify>,
      .eval_lm = guarded<apps::eval_lm>,
      .eval_lm_tasks = guarded<apps::eval_lm_tasks>,
      .eval_diffusion = guarded<apps::eval_diffusion>,
      .eval_video = guarded<apps::eval_video>,
      .eval_images = guarded<apps::eval_images>,
      .encode_data = guarded<apps::encode_data>,
      .predict = guarded<apps::predict>,
      .export_model = guarded<apps::export_model>,
      .generate = guarded<apps::generate_text>,
      .sample_images = guarded<apps::sample_images>,
      .sample_video = guarded<apps::sample_video>,
      .analyze = guarded<apps::analyze>,
      .bench_classifier = guarded<apps::bench_classifier>,
      .bench_lm = guarded<apps::bench_lm>,
      .bench_scale = guarded<apps::bench_scale>,
      .bench_video = guarded<apps::bench_video>,
      .convert_model = guarded<weights::convert_model>,
      .convert_layers = guarded<weights::convert_layers>,
      .name_layers = guarded<weights::name_layers>,
      .golden_runs_on = golden::runs_on,
      .golden_compute = guarded<golden::compute>,
      .describe = rivals::describe,
      .time_rival = guarded<rivals::time_rival>,
  };
  return &engine;
}
