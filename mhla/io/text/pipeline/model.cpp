#include "mhla/io/text/pipeline/model.h"

#include "mhla/io/text/json_part.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

std::string quoted(std::string_view text) { return json_quote(text.substr(0, 80)); }

std::string text_or_empty(const JsonPart& part, std::string_view key) {
  const JsonValue* value = part.find(key);
  return value != nullptr ? value->as_string() : std::string();
}

}  // namespace

Model::Model(const JsonValue& value, const std::vector<AddedToken>& added) {
  if (value.is_object() && value.contains("type") && type_of(value, "model") != "BPE")
    fail("model is ", quoted(type_of(value, "model")), ", expected BPE");
  const JsonPart part(value, "model",
                      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                       "byte_fallback", "ignore_merges", "vocab", "merges"});
  part.only("dropout", 0.0);
  prefix_ = text_or_empty(part, "continuing_subword_prefix");
  suffix_ = text_or_empty(part, "end_of_word_suffix");
  if (const JsonValue* unk = part.find("unk_token")) maybe_unk_ = unk->as_string();
  fuse_unk_ = part.flag("fuse_unk", false);
  byte_fallback_ = part.flag("byte_fallback", false);
  ignore_merges_ = part.flag("ignore_merges", false);
  read_vocab(part.at("vocab").members(), added);
  read_merges(part.at("merges"));
  if (maybe_unk_) maybe_unk_id_ = find(*maybe_unk_);
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    byte_ids_[byte] = find(std::string{'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'});
  }
}

void Model::read_vocab(const JsonValue::Object& vocab, const std::vector<AddedToken>& added) {
  // Ids may have holes, but a short file must not ask for gigabytes.
  const std::size_t most = std::min<std::size_t>(kMaxVocab, 2 * (vocab.size() + added.size()) + 1024);
  const auto put = [&](std::int64_t id, const std::string& text) {
    if (id < 0 || static_cast<std::uint64_t>(id) >= most)
      fail("token ", quoted(text), " has id ", id, ", expected 0 to ", most - 1);
    const auto at = static_cast<std::size_t>(id);
    if (tokens_.size() <= at) tokens_.resize(at + 1);
    if (text.empty()) fail("token ", id, " is empty");
    if (!tokens_[at].empty() && tokens_[at] != text)
      fail("tokens ", quoted(text), " and ", quoted(tokens_[at]), " have both id ", id);
    tokens_[at] = text;
  };
  for (const JsonValue::Member& member : vocab) put(member.value.as_int(), member.key);
  for (const AddedToken& token : added) put(token.id, token.text);
  for (const JsonValue::Member& member : vocab) {  // texts do not move any more
    const auto id = static_cast<std::uint32_t>(member.value.as_int());
    ids_.emplace(tokens_[id], id);
  }
  for (const AddedToken& token : added)
    if (const auto id = find(token.text); id && *id != token.id)
      fail("added token ", quoted(token.text), " has id ", token.id, ", in the vocabulary it is ", *id);
}

void Model::read_merges(const JsonValue& list) {
  pairs_.emplace(list.size());
  std::string joined;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const JsonValue& item = list.at(rank);
    std::string_view left, right;
    if (item.is_array() && item.size() == 2) {
      left = item.at(0).as_string(), right = item.at(1).as_string();
    } else if (item.is_string()) {
      const std::string_view text = item.as_string();
      const std::size_t space = text.find(' ');
      if (space != std::string_view::npos) left = text.substr(0, space), right = text.substr(space + 1);
    }
    const auto left_id = find(left), right_id = find(right);
    if (!left_id || !right_id || right.substr(0, prefix_.size()) != prefix_)
      fail("merge ", rank, " is ", shown(item), ", expected two tokens of the vocabulary",
           prefix_.empty() ? "" : ", the second with the prefix of what continues a word");
    const auto id = find(joined.assign(left).append(right.substr(prefix_.size())));
    if (!id) fail("merge ", rank, " makes ", quoted(joined), ", which is no token");
    if (!pairs_->add(*left_id, *right_id, {static_cast<std::uint32_t>(rank), *id}))
      fail("merge ", rank, " of ", quoted(left), " and ", quoted(right), " stands there twice");
  }
}

std::optional<std::uint32_t> Model::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found != ids_.end() ? std::optional(found->second) : std::nullopt;
}

bool Model::put_bytes(std::string_view text, std::vector<std::uint32_t>& ids) const {
  for (const char c : text)
    if (!byte_ids_[static_cast<unsigned char>(c)]) return false;
  for (const char c : text) ids.push_back(*byte_ids_[static_cast<unsigned char>(c)]);
  return true;
}

// The tokens of the characters of `piece`. An unknown one waits until the next token that is known: bytes overtake it,
// and with fuse_unk those that follow are one with it.
void Model::start(std::string_view piece, std::vector<std::uint32_t>& ids) const {
  std::string with;
  bool waiting = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = first_code(piece.substr(at)).length;
    std::string_view text = piece.substr(at, length);
    const bool first = at == 0, last = at + length == piece.size();
    if ((!first && !prefix_.empty()) || (last && !suffix_.empty()))
      text = with.assign(first ? "" : prefix_).append(text).append(last ? suffix_ : "");
    at += length;
    if (const auto id = find(text)) {
      if (waiting) ids.push_back(*maybe_unk_id_);
      waiting = false;
      ids.push_back(*id);
      continue;
    }
    if (byte_fallback_ && put_bytes(text, ids)) continue;
    if (!maybe_unk_) continue;
    if (!maybe_unk_id_)
      fail("tokenizer: ", quoted(text), " has no token, and neither has unk_token ", quoted(*maybe_unk_));
    if (waiting && !fuse_unk_) ids.push_back(*maybe_unk_id_);
    waiting = true;
  }
  if (waiting) ids.push_back(*maybe_unk_id_);
}

void Model::encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const {
  if (ignore_merges_)
    if (const auto id = find(piece)) return ids.push_back(*id);
  std::vector<std::uint32_t>& list = scratch.ids;
  list.clear();
  start(piece, list);
  if (list.size() <= BpeMerger::kShort)
    list.resize(BpeMerger::merge_short(*pairs_, list.data(), list.size()));
  else
    scratch.merger.merge_long(*pairs_, list);
  ids.insert(ids.end(), list.begin(), list.end());
}

}  // namespace mhla::pipeline
