// What a language model learns from, and what it is judged by:
//   text  a token set; perplexity on the documents that are held out of it
//   mqar  associative recall, made on the fly (data/mqar.h); how many of the answers to held-out sequences are right
#pragma once

#include <functional>
#include <memory>

#include "mhla/data/mqar.h"
#include "mhla/data/token_batches.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/models/lm/lm.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/task.h"

namespace mhla::train {

// `options` below are resolved: their context is that of the run. A sample is a token that has a target.
class LmData {
 public:
  virtual ~LmData() = default;
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  [[nodiscard]] virtual const char* whose() const = 0;             // vocabulary that is, in messages
  [[nodiscard]] virtual TokenizerPtr maybe_tokenizer() const = 0;  // none: ids are no text
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t checksum() const = 0;  // of what is trained on; -1: it is made by the options
  [[nodiscard]] virtual std::vector<std::string> warnings() const = 0;
  [[nodiscard]] virtual std::unique_ptr<TokenBatches> batches(const LmOptions& options, const Cursor& start) const = 0;

  [[nodiscard]] virtual const char* samples() const = 0;  // "tokens", or "answers" where few tokens have a target
  [[nodiscard]] virtual double tokens_per_sample(const LmOptions& options) const = 0;
  [[nodiscard]] virtual Metrics derived(const LmOptions& options, double loss, double samples_per_s) const = 0;

  // On what is held out, with autocast where that is on; nothing where nothing is. `progress` is of samples. With a
  // share, processes share every sequence that is long enough for it.
  [[nodiscard]] virtual Metrics evaluate(LanguageModelImpl& model, const LmOptions& options,
                                         const EvalProgress& progress = {},
                                         ContextShare* maybe_share = nullptr) const = 0;
};
using LmDataPtr = std::unique_ptr<const LmData>;

// What the options name. Text becomes tokens on first use, and `told` gets a line about it.
LmDataPtr open_data(const LmOptions& options, const std::string& run,
                    const std::function<void(const std::string&)>& told);

// ---- Text

// The folder of tokens that the options name, filled on first use. Tokens that are there already must be those of the
// same text.
std::string token_folder(const LmOptions& options, const std::string& run,
                         const std::function<void(const std::string&)>& told);
LmDataPtr open_tokens(const std::string& folder, bool check = false);  // `check`: their checksums
// Before a run begins: an Error where a tokenizer, or a part to hold out, is given that would not be used, as the
// tokens are there already and have another.
void expect_own_tokens(const LmOptions& options, const std::string& run);

// ---- Recall (mqar_data.cpp)

inline constexpr const char* kMqar = "mqar";  // as `data` of the options
inline bool is_mqar(const LmOptions& options) { return options.data == kMqar; }
MqarOptions mqar_options(const LmOptions& options, std::int64_t length);
LmDataPtr mqar_data(const LmOptions& options);

}  // namespace mhla::train
