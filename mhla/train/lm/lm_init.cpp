#include "mhla/train/lm/lm_init.h"

#include "mhla/core/error.h"
#include "mhla/data/token_set.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/train/lm/run_tokenizer.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

const std::set<std::string> kFree{"model", "context", "mix_init", "mix_sigma", "mix_range", "learn_mix"};

bool is_mix(const std::string& name) {
  const std::string tail = ".attn.mix";
  return name.size() > tail.size() && name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
}

// [L, L] or [Hm, L, L] with as many rows as `like`.
torch::Tensor with_rows(const torch::Tensor& mix, const torch::Tensor& like) {
  std::vector<std::int64_t> shape = mix.sizes().vec();
  shape[shape.size() - 1] = shape[shape.size() - 2] = like.size(-1);
  const torch::Tensor given = mix.to(torch::kFloat).contiguous(), out = torch::empty(shape, given.options());
  extend_mix(ops::view_of(given, "init", "mix"), ops::output_view(out, "init", "mix"));
  return out;
}

}  // namespace

void expect_tokenizer_of(const InitSource& source, const TokenizerPtr& maybe_tokenizer) {
  if (source.maybe_folder.empty()) return;
  const std::optional<std::string> known = known_fingerprint(source.maybe_folder);
  if (known && maybe_tokenizer == nullptr)
    fail("train: init is ", source.name, ", which was trained on text, but the data has ids that are no text");
  if (known && *known != fingerprint_text(*maybe_tokenizer))
    fail("train: init is ", source.name, ", which was trained with another tokenizer (", *known,
         ") than that of the data (", fingerprint_text(*maybe_tokenizer), ")");
}

void expect_tokenizer_of(const InitSource& source, const std::string& tokenizer) {
  if (tokenizer.empty() || source.maybe_folder.empty()) return;
  if (trained_size(tokenizer) > 0 && known_fingerprint(source.maybe_folder))
    fail("train: init is ", source.name, ", which has a tokenizer, but tokenizer is ", tokenizer,
         ", expected none or that one");
  if (trained_size(tokenizer) == 0) expect_tokenizer_of(source, open_tokenizer(tokenizer));
}

std::vector<std::string> start_from(LanguageModelImpl& model, const InitSource& source) {
  Weights weights = read_init(source);
  const NamedTensors tensors = tensors_of(model);
  const Weights own(tensors.begin(), tensors.end());
  std::vector<std::string> changes;
  try {
    if (!source.maybe_config.empty())
      expect_same_network(source, fields_to_json(read_lm_config(source.maybe_config)), fields_to_json(model.config()),
                          kFree);
    if (source.maybe_config.empty() && !has_own_names(own, published_weights(model), weights)) {
      load_published(model, weights);
      return changes;
    }
    std::int64_t before = 0, rows = 0;
    for (auto& [name, value] : weights) {
      const auto ours = own.find(name);
      if (!is_mix(name) || ours == own.end() || value.dim() < 2 || value.size(-1) == ours->second.size(-1)) continue;
      before = value.size(-1), rows = ours->second.size(-1);
      value = with_rows(value, ours->second);
    }
    if (rows > 0)
      changes.push_back(
          str("mixing matrices ", rows > before ? "extended" : "cut", " to ", rows, " rows from ", before));
    copy_weights(own, weights, "init");
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.rfind("train: init is ", 0) == 0) throw;
    fail("train: init is ", source.name, ": ", source.file.filename().string(), ": ", text);
  }
  return changes;
}

}  // namespace mhla::train
