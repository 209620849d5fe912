#include "apps/engine/sample_video/video_captions.h"

#include <algorithm>

#include "mhla/core/run_failed.h"
#include "mhla/io/folder.h"
#include "mhla/io/json.h"
#include "mhla/io/text/prompt_cleaning.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/io/utf8.h"
#include "mhla/language/caption_tokens.h"
#include "mhla/models/text_encoder/umt5.h"
#include "mhla/models/weights_folder.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char *kCacheTexts = "mhla.captions", *kCacheEncoder = "mhla.text_encoder";

std::uint64_t weight_bytes(const fs::path& path) {
  if (!is_folder(path)) return fs::file_size(path);
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  return bytes;
}

}  // namespace

VideoCaptions::VideoCaptions(const VideoPlan& plan, const SampleVideoRequest& r) : plan_(plan), cache_(r.text_cache) {
  if (plan.words) {
    for (const VideoPrompt& prompt : plan.prompts)
      for (const std::string* text : {&prompt.text, &prompt.negative}) (void)states(*text);  // words that are not known
    return;
  }
  if (!cache_.empty() && is_there(cache_)) read_cache(cache_);
  if (plan.encoder && !cached_id_.empty() && cached_id_ != encoder_id())
    fail(kVideoCommand, ": ", cache_.string(), " has states of another text encoder than ",
         plan.files.text_encoder.string(), ", expected another --text-cache");
  TokenizerPtr tokenizer;
  if (!plan.files.tokenizer.empty()) tokenizer = open_tokenizer(plan.files.tokenizer.string());
  if (tokenizer && plan.encoder && tokenizer->vocab_size() > plan.encoder->vocab_size)
    fail(kVideoCommand, ": ", plan.files.tokenizer.string(), " has ", tokenizer->vocab_size(),
         " tokens, expected at most the ", plan.encoder->vocab_size, " of the text encoder");
  const auto need = [&](const std::string& text) {
    const std::string cleaned = clean_prompt(text);
    if (known_.count(cleaned) != 0 || missing_.count(cleaned) != 0) return;
    if (!plan.encoder)
      fail(kVideoCommand, ": '", start_of(cleaned), "' ",
           cache_.empty() ? "needs a text encoder" : str("is not in ", cache_.string()),
           ", expected text_encoder/ beside the model or --text-encoder PATH");
    if (!tokenizer)
      fail(kVideoCommand, ": no spiece.model is in tokenizer/, google/umt5-xxl/ or beside ",
           plan.files.text_encoder.string(), ", expected umT5's");
    std::vector<std::int64_t> ids = umt5_caption(*tokenizer, text);
    const auto tokens = static_cast<std::int64_t>(ids.size()), most = plan.network.text_tokens;
    if (tokens > most)
      fail(kVideoCommand, ": '", start_of(cleaned), "' has ", tokens, " tokens, expected at most ", most,
           ": leave out the last ", tokens - most);
    longest_ = std::max(longest_, tokens);
    missing_.emplace(cleaned, std::move(ids));
  };
  for (const VideoPrompt& prompt : plan.prompts) {
    need(prompt.text);
    if (plan.guided()) need(prompt.negative);
  }
}

// Reading 11 GB to be sure would take longer than encoding: the sizes of model and files must do.
std::string VideoCaptions::encoder_id() const {
  return str("umt5 ", write_json(fields_to_json(*plan_.encoder)), " ", weight_bytes(plan_.files.text_encoder),
             " bytes");
}

void VideoCaptions::read_cache(const fs::path& path) {
  const Safetensors file = Safetensors::read(path);
  const auto texts = file.metadata().find(kCacheTexts), id = file.metadata().find(kCacheEncoder);
  if (texts == file.metadata().end() || id == file.metadata().end())
    fail(kVideoCommand, ": ", path.string(), " is no file of --text-cache");
  cached_id_ = id->second;
  const Weights states = weights_in(file);
  labelled(path.string(), [&] {
    const JsonValue list = parse_json(texts->second, kCacheTexts);
    for (const JsonValue::Member& member : list.members()) {
      const auto found = states.find(member.value.as_string());
      if (found == states.end()) fail("the states of '", start_of(member.key), "' are missing");
      const torch::Tensor& rows = found->second;
      if (rows.dim() != 2 || rows.size(0) < 1 || rows.size(0) > plan_.network.text_tokens ||
          rows.size(1) != plan_.network.text_dim)
        fail("the states of '", start_of(member.key), "' are ", c10::str(rows.sizes()), ", expected [up to ",
             plan_.network.text_tokens, ", ", plan_.network.text_dim, "]");
      known_[member.key] = rows.to(torch::kFloat);
    }
  });
}

void VideoCaptions::write_cache(const fs::path& path) const {
  JsonValue list = JsonValue::object();
  Weights states;
  for (const auto& [text, rows] : known_) {
    const std::string name = std::to_string(states.size());
    list.set(text, name);
    states[name] = rows;
  }
  write_weights(path, states, {{kCacheTexts, write_json(list)}, {kCacheEncoder, encoder_id()}});
}

void VideoCaptions::encode(torch::Device device) {
  if (missing_.empty()) return;
  const torch::NoGradGuard no_gradient;
  const fs::path& from = plan_.files.text_encoder;
  Umt5 encoder(*plan_.encoder, torch::kBFloat16);
  labelled(from.string(), [&] { load_published(*encoder, mapped_weights(from)); });
  encoder->to(device);
  encoder->eval();
  for (const auto& [text, ids] : missing_) {  // one at a time: its states do not depend on the others
    const torch::Tensor row = torch::tensor(ids, torch::kLong).unsqueeze(0).to(device);
    const torch::Tensor states = encoder->forward(row).squeeze(0).to(torch::kFloat).cpu();
    if (!states.isfinite().all().item<bool>())
      throw RunFailed(str(kVideoCommand, ": the states of '", start_of(text), "' are NaN or infinite"));
    known_[text] = states;
  }
  missing_.clear();
  if (!cache_.empty()) write_cache(cache_);
}

torch::Tensor VideoCaptions::states(const std::string& text) const {
  if (plan_.words) {
    const torch::Tensor ids = torch::empty({1, plan_.network.text_tokens}, torch::kLong);
    labelled(kVideoCommand, [&] { plan_.words->encode(text, ids.size(1), ids.data_ptr<std::int64_t>()); });
    return ids;
  }
  const torch::Tensor& rows = known_.at(clean_prompt(text));
  return torch::constant_pad_nd(rows, {0, 0, 0, plan_.network.text_tokens - rows.size(0)}).unsqueeze(0);
}

}  // namespace mhla::apps
