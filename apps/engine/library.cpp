// The C interface of apps/engine/train_interface.h.
#include <cstring>

#include "apps/commands.h"
#include "apps/engine/bench_model.h"
#include "apps/engine/classify.h"
#include "apps/engine/eval_tasks.h"
#include "apps/engine/export.h"
#include "apps/engine/generate.h"
#include "apps/engine/lm.h"
#include "apps/engine/predict.h"
#include "apps/engine/train_interface.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/ops/torch_error.h"

namespace mhla::apps {
namespace {

struct Caller : train::Observer {
  Caller(mhla_train_row to_call, void* given) : call(to_call), context(given) {}
  void row(const JsonValue& json) override { call(context, 0, write_json(json).c_str()); }
  void progress(const JsonValue& json) override { call(context, 1, write_json(json).c_str()); }
  mhla_train_row call;
  void* context;
};

void run(const JsonValue& request, train::Observer& observer) {
  const std::string& command = request.at("command").as_string();
  if (command == "train classify") return train_classify(request, observer);
  if (command == "eval classify") return eval_classify(request, observer);
  if (command == "predict") return predict(request, observer);
  if (command == "export") return export_model(request, observer);
  if (command == "train lm") return train_lm(request, observer);
  if (command == "eval lm") return eval_lm(request, observer);
  if (command == "generate") return generate_text(request, observer);
  if (command == "eval lm tasks") return eval_lm_tasks(request, observer);
  if (command == "bench model") return bench_model(request, observer);
  if (command == "analyze") return analyze(request, observer);
  fail("command '", command, "' is unknown to this library");
}

}  // namespace
}  // namespace mhla::apps

extern "C" {

int mhla_train_interface(void) { return MHLA_TRAIN_INTERFACE; }

int mhla_train_run(const char* request, mhla_train_row row, void* context, char* reason, size_t reason_size) {
  using namespace mhla;
  const auto because = [&](const char* text, int code) {
    std::strncpy(reason, text, reason_size - 1);
    return code;
  };
  try {
    try {
      apps::Caller caller(row, context);
      apps::run(parse_json(request, "request"), caller);
      return apps::kDone;
    } catch (const std::filesystem::filesystem_error& error) {
      fail_as(error);
    }
  } catch (const Error& error) {
    return because(error.what(), apps::kCallersMistake);
  } catch (const std::exception& error) {
    return because(ops::short_reason(error).c_str(), apps::kFailed);
  }
}
}
