// Text into a token set. One document is always kept back until the next one has come: the last may have to be held
// out.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/data/corpus.h"
#include "mhla/data/token_set.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/text/bpe_train.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char *kSplits[] = {"train", "valid"}, *kShardEnd = ".tokens";

TokenizerPtr make_tokenizer(const TokenizeOptions& o, std::int64_t trained_to) {
  if (trained_to == 0) return open_tokenizer(o.tokenizer);
  BpeTrainOptions options;
  options.vocab_size = trained_to;
  BpeTrainer trainer(options);
  read_corpus(o.data, [&](const std::string&, std::string_view text) { trainer.add(text); });
  return trainer.train();
}

// Shards, train-00000.tokens, and the .part files that a killed writer leaves.
bool is_left_over(std::string name) {
  bool part = false;
  if (const std::size_t at = name.rfind(".part"); at != std::string::npos) name.resize(at), part = true;
  if (part && (name == kTokenIndex || name == "tokenizer.json" || name == "tokenizer.model")) return true;
  return std::any_of(std::begin(kSplits), std::end(kSplits), [&](const std::string& split) {
    const std::size_t digits = split.size() + 1;
    return name.size() > digits && name.compare(0, digits, split + "-") == 0 &&
           name.find_first_not_of("0123456789", digits) == name.rfind(kShardEnd) && name.ends_with(kShardEnd);
  });
}

// The folder of a token set until it is whole, for one writer: what is no part of a whole one goes, at the start and
// where it fails.
class NewFolder {
 public:
  explicit NewFolder(const std::string& folder) : folder_(folder) {
    lock_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ >= 0 && ::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(lock_);
      fail("tokenize: ", folder, " is being filled by another process");
    }
    remove_left_over();
  }
  ~NewFolder() {
    if (!whole_) remove_left_over();
    if (lock_ >= 0) ::close(lock_);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void finish(const Tokenizer& tokenizer, const TokenSetInfo& info) {
    tokenizer.save(folder_.claim(tokenizer.file_name()));
    write_file(folder_.claim(kTokenIndex), write_token_index(info));
    folder_.keep();
    whole_ = true;
  }

 private:
  void remove_left_over() const {
    std::error_code none;
    std::vector<fs::path> old;
    for (fs::directory_iterator at(folder_.path(), none), end; !none && at != end; at.increment(none))
      if (is_left_over(at->path().filename().string())) old.push_back(at->path());
    for (const fs::path& file : old) fs::remove(file, none);
  }
  OutputFolder folder_;
  int lock_ = -1;
  bool whole_ = false;
};

// Shards of one split, a new one when the last is full.
class SplitWriter {
 public:
  SplitWriter(const TokenizeOptions& o, const Tokenizer& tokenizer, const char* name, TokenSplit& split)
      : options_(o), tokenizer_(tokenizer), name_(name), split_(split) {}
  void add(std::span<const std::uint32_t> document) {
    if (!shard_) shard_.emplace(tokenizer_.fingerprint(), tokenizer_.vocab_size());
    shard_->add(document);
    if (shard_->tokens() >= options_.shard_tokens) close();
  }
  void close() {
    if (!shard_) return;
    char number[16];
    std::snprintf(number, sizeof number, "%05d", static_cast<int>(split_.shards.size()));
    split_.shards.push_back(str(name_, "-", number, kShardEnd));
    split_.documents += shard_->documents();
    split_.tokens += shard_->tokens();
    shard_->write(fs::path(options_.out) / split_.shards.back());
    shard_.reset();
  }

 private:
  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  const char* name_;
  TokenSplit& split_;
  std::optional<TokenShardWriter> shard_;
};

// Where the last `part` of a text begins: behind a line or a word that ends there or before, but for twice the part at
// most, or between two characters. 0: the text has no two parts.
std::size_t tail_of(std::string_view text, double part) {
  const auto rest = static_cast<std::size_t>(std::ceil(static_cast<double>(text.size()) * part));
  const std::size_t want = text.size() - rest;
  for (const char* ends : {"\n", " \t"}) {
    const std::size_t end = want == 0 ? std::string_view::npos : text.find_last_of(ends, want - 1);
    if (end != std::string_view::npos && end + 1 + rest >= want) return end + 1;
  }
  std::size_t cut = want;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;
  return cut;
}

void check(const TokenizeOptions& o) {
  if (o.out.empty()) fail("tokenize: out is empty, expected a folder");
  if (!(o.valid >= 0.0 && o.valid <= 0.5)) fail("tokenize: valid is ", o.valid, ", expected 0 to 0.5");
  if (o.valid > 0.0 && !o.valid_data.empty())
    fail("tokenize: valid is ", o.valid, " and valid_data is ", o.valid_data, ", expected one of them");
  if (!o.valid_data.empty() && !is_there(corpus_path(o.valid_data)))
    fail("tokenize: valid_data is ", o.valid_data, ", which is not there");
  if (o.shard_tokens < 1) fail("tokenize: shard_tokens is ", o.shard_tokens, ", expected at least 1");
  if (is_token_set(o.out)) fail("tokenize: ", o.out, " has a ", kTokenIndex, " already; give another folder");
}

void append(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::string first_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i) text += str(i == 0 ? "" : ", ", names[i]);
  return names.size() > 3 ? text + ", ..." : text;
}

}  // namespace

std::vector<std::string> text_warnings(const TokenSetInfo& info) {
  std::vector<std::string> lines;
  if (!info.broken.empty())
    lines.push_back(str(info.broken.size(),
                        " documents are no UTF-8 text, their bytes are taken as they are: ", first_of(info.broken)));
  if (!info.not_read.empty())
    lines.push_back(str(info.not_read.size(),
                        " files were not read, as they end in no .txt, .md or .jsonl: ", first_of(info.not_read)));
  return lines;
}

TokenSetInfo tokenize_corpus(const TokenizeOptions& o, const std::function<void(std::int64_t)>& progress) {
  check(o);
  const std::int64_t trained_to = trained_size(o.tokenizer);
  const TokenizerPtr tokenizer = make_tokenizer(o, trained_to);
  NewFolder folder(o.out);
  TokenSetInfo info;
  info.source = o.data, info.valid_source = o.valid_data, info.valid_part = o.valid;
  info.tokenizer_kind = tokenizer->kind();
  info.fingerprint = tokenizer->fingerprint();
  info.vocab_size = tokenizer->vocab_size(), info.trained_to = trained_to;
  const std::vector<std::uint32_t> opening = tokenizer->document_opening(), &closing = tokenizer->closing();
  if (!opening.empty()) info.document_token = opening.front();
  SplitWriter train(o, *tokenizer, kSplits[0], info.train), valid(o, *tokenizer, kSplits[1], info.valid);
  const std::unique_ptr<Encoder> encoder = tokenizer->encoder();
  std::vector<std::uint32_t> ids;
  std::int64_t done = 0;
  const auto add = [&](const std::string& name, std::string_view text, SplitWriter& to) {
    ids = opening;
    try {
      encoder->encode(text, ids);
    } catch (const Error& error) {
      fail(name, ": ", error.what());
    }
    ids.insert(ids.end(), closing.begin(), closing.end());
    to.add(ids);
    if (++done % 256 == 0 && progress) progress(done);
  };
  const std::int64_t every = o.valid > 0.0 ? std::llround(1.0 / o.valid) : 0;
  std::string last, last_name;  // document that has come, not yet in a split
  CorpusCounts counts = read_corpus(o.data, [&](const std::string& name, std::string_view text) {
    if (!last.empty()) add(last_name, last, every > 0 && done % every == every - 1 ? valid : train);
    last.assign(text), last_name = name;
  });
  if (every > 0 && counts.documents == 1) {
    const std::size_t tail = tail_of(last, o.valid);
    if (tail == 0)
      fail("tokenize: ", o.data, " is one document of ", last.size(),
           " bytes, of which none can be held out, expected valid 0");
    add(last_name, std::string_view(last).substr(0, tail), train);
    add(last_name, std::string_view(last).substr(tail), valid);
    info.valid_tail = true;
  } else {
    add(last_name, last, every > 0 && (done < every || done % every == every - 1) ? valid : train);
  }
  if (!o.valid_data.empty()) {
    const CorpusCounts more =
        read_corpus(o.valid_data, [&](const std::string& name, std::string_view text) { add(name, text, valid); });
    counts.bytes += more.bytes;
    append(counts.empty, more.empty), append(counts.broken, more.broken), append(counts.not_read, more.not_read);
  }
  train.close();
  valid.close();
  info.text = counts.print, info.bytes = counts.bytes;
  info.empty = counts.empty, info.broken = counts.broken, info.not_read = counts.not_read;
  folder.finish(*tokenizer, info);
  return info;
}

}  // namespace mhla
