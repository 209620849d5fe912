#include "apps/engine/lm.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "apps/engine/training.h"
#include "mhla/core/limits.h"
#include "mhla/data/token_set.h"
#include "mhla/train/lm/lm_eval.h"
#include "mhla/train/lm/lm_init.h"
#include "mhla/train/lm/lm_sharing.h"
#include "mhla/train/lm/open_lm.h"
#include "mhla/train/lm/run_tokenizer.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/stop_signal.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

void train_here(const TrainRequest<LmOptions>& request, LmOptions options, Observer& observer) {
  const fs::path folder = request.out;
  RunStart start{.resume = request.resume, .overwrite = request.overwrite};
  const bool goes_on = start.resume && fs::exists(folder / "train.json");
  if (goes_on) options.model = model_of(options.model, folder);
  check(options);
  expect_room(folder, start);  // before anything is written into it
  note_origin(options);
  const LmOptions typed = options;
  options = located(options);
  if (const std::string own = tokenizer_file(folder); goes_on && !own.empty() && !is_mqar(options))
    options.tokenizer = own;  // where tokens must be made again
  const std::optional<InitSource> init = init_source("train lm", options.train, folder, start, observer);
  if (init && options.tokenizer.empty() && !is_token_set(options.data) && !is_mqar(options))
    options.tokenizer = tokenizer_file(init->maybe_folder);
  if (init && !is_mqar(options)) expect_tokenizer_of(*init, options.tokenizer);  // before text is made into tokens
  if (!goes_on) expect_own_tokens(options, folder.string());
  prepare(options.train, observer);
  expect_fits(options, least_network(options));  // before text is made into tokens
  LmDataPtr data;
  const auto say = [&](const std::string& text) { observer.row(JsonValue().set("kind", "tokens").set("text", text)); };
  first_then_rest(
      options.train.place, [&] { data = open_data(options, folder.string(), say); }, "tokens");
  const LmConfig network = network_of(options, *data);
  expect_fits(options, network);
  options = resolved(options, network);
  if (const TokenizerPtr tokenizer = data->maybe_tokenizer(); tokenizer != nullptr && !start.overwrite)
    expect_same_tokenizer("train lm", folder, *tokenizer);
  if (init) expect_tokenizer_of(*init, data->maybe_tokenizer());
  if (options.train.place.context > 1) say_sharing(options.train, shared_kind(options, network), observer);
  LmTask task(options, std::move(data), network);
  if (init) note_init(*init, start_from(task.language_model(), *init), options.origin, start);
  settle_warmup(task, options.train, start);
  Trainer trainer(task, options.train, folder, options_to_json(as_typed(options, typed)), observer);
  run_to_end(trainer, start, folder);
}

}  // namespace

void train_lm(const TrainRequest<LmOptions>& request, Observer& observer) {
  LmOptions options = request.options;
  in_team(options.train, observer, [&](Observer& heard) { train_here(request, options, heard); });
}

namespace {

// A folder below that of the system for temporary files, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "mhla-eval-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr)
      throw RunFailed(str("eval lm: ", path_, " could not be made: ", std::strerror(errno),
                          "; --tokens names a folder for the tokens of --data, TMPDIR another for temporary files"));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string tokens() const { return path_ + "/tokens"; }

 private:
  std::string path_;
};

// The tokens to evaluate on: those held out of the run's data, or of other tokens or text. Text becomes tokens in the
// folder of --tokens, or in a temporary one: its files are mapped when this returns, and need no names any more.
TokenSet tokens_of(const EvalLmRequest& request, const LmRun& run, Observer& observer) {
  const TokenizerPtr tokenizer = text_of("eval lm", run);
  std::string data = request.data;
  const fs::path folder = request.open.run;
  if (data.empty()) {
    data = is_token_set(run.options.data)     ? run.options.data
           : is_token_set(run.options.tokens) ? run.options.tokens
                                              : (folder / "tokens").string();
    if (!is_token_set(data))
      fail("eval lm: the tokens of the run are not at ", data, " any more, expected --data, tokens or text");
  }
  const std::string& into = request.tokens;
  std::optional<TemporaryFolder> temporary;
  if (is_token_set(data) && !into.empty() && into != data)
    fail("eval lm: tokens is ", into, ", but ", data, " is a folder of tokens already, expected text in --data");
  if (!is_token_set(data)) {
    TokenizeOptions how;
    how.data = data, how.tokenizer = (folder / tokenizer->file_name()).string();
    if (into.empty()) temporary.emplace();
    how.out = temporary ? temporary->tokens() : into;
    if (!fs::exists(corpus_path(data))) fail("eval lm: data is ", data, ", which is not there");
    if (!is_token_set(how.out)) {
      const StopSignal signal;  // what is not whole is removed
      const auto leave = [&](std::int64_t) {
        if (signal.name() != nullptr) throw RunFailed(str("eval lm: stopped by ", signal.name(), " in making tokens"));
      };
      const TokenSetInfo made = tokenize_corpus(how, leave);
      leave(0);
      for (const std::string& line : text_warnings(made)) warn(observer, line);
    }
    expect_tokens_of("eval lm", how.out, TokenSet::open(how.out).info(), how.data);
    data = how.out;
  }
  const TokenSetInfo info = TokenSet::open(data).info();
  if (info.fingerprint != tokenizer->fingerprint())
    fail("eval lm: ", data,
         " has tokens of another tokenizer than the run's, expected text or tokens of the run's own");
  if (info.valid.documents == 0 && request.data.empty())
    warn(observer, str("nothing was held out of ", data, ": these are the tokens the run was trained on"));
  TokenSet set = TokenSet::open(data, info.valid.documents > 0);
  set.verify_checksums();
  return set;
}

// What was evaluated, for people: a folder of tokens that is kept, or the text.
std::string name_of_data(const EvalLmRequest& request, const TokenSet& set) {
  const std::string& data = request.data;
  return data.empty() || is_token_set(data) || !request.tokens.empty() ? set.folder() : data;
}

}  // namespace

void eval_lm(const EvalLmRequest& request, Observer& observer) {
  LmRun run = open_lm_run("eval lm", request.open, observer);
  const TokenSet set = tokens_of(request, run, observer);
  PerplexityOptions o;
  const LmConfig& network = run.model->config();
  const std::int64_t trained_on = run.options.context > 0 ? run.options.context : network.context;
  o.length = request.length > 0 ? request.length : trained_on;
  o.stride = request.stride, o.tokens = request.max_tokens, o.bucket = request.bucket;
  o.batch = run.options.train.batch;
  expect_within("eval lm", "--length", o.length, limits::kContext);
  const std::int64_t at_once = std::min(o.batch * o.length, set.tokens());
  expect_inference_fits("eval lm", size_of(network, at_once), 1, run.options.train);
  const std::string packing = request.packing.empty() ? run.options.packing : request.packing;
  o.documents = packing == "documents";
  run.model->set_length_policy(parse_length_policy(request.length_policy));
  const torch::Device device = run.model->device();
  Perplexity result;
  {
    const Autocast autocast(run.options.train, device);
    result = perplexity(*run.model, set, o, [&](std::int64_t done) {
      observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", set.tokens()));
    });
  }
  if (!std::isfinite(result.loss)) throw not_finite("eval lm", run.weights);
  JsonValue buckets = JsonValue::array();
  for (const Bucket& bucket : result.buckets) {
    buckets.push(JsonValue()
                     .set("first", bucket.first)
                     .set("last", bucket.last)
                     .set("tokens", bucket.tokens)
                     .set("loss", bucket.loss)
                     .set("perplexity", std::exp(bucket.loss)));
  }
  observer.row(JsonValue()
                   .set("kind", "eval")
                   .set("task", "perplexity")
                   .set("weights", run.weights.string())
                   .set("model", network.model)
                   .set("attention", network.attention)
                   .set("data", name_of_data(request, set))
                   .set("tokens", result.tokens)
                   .set("length", o.length)
                   .set("stride", o.stride > 0 ? o.stride : o.length)
                   .set("packing", packing)
                   .set("length_policy", policy_of(*run.model))
                   .set("length_plan", result.length)
                   .set("loss", result.loss)
                   .set("perplexity", std::exp(result.loss))
                   .set("tokens_per_s", static_cast<double>(result.tokens) / result.seconds)
                   .set("buckets", buckets));
}

}  // namespace mhla::apps
