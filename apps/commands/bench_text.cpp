// mhla bench text: megabytes of text per second and core through a tokenizer, there and back. Verifies first that what
// is decoded is the text, byte for byte. Documents are encoded one by one with one encoder, as `mhla data tokenize`
// does.
#include "apps/commands/bench_text.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/bench/timing.h"
#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "mhla/core/error.h"
#include "mhla/data/token_set.h"
#include "mhla/io/text/bpe_train.h"

namespace mhla::apps {
namespace {

struct TextBenchOptions {
  std::string data = "default", tokenizer = "train:32000";
  std::int64_t vocab = 0, max_bytes = std::int64_t{16} << 20;
  double min_seconds = 3.0;
  bool json = false;
};

std::vector<std::string> documents_of(const TextBenchOptions& o) {
  std::vector<std::string> documents;
  std::int64_t bytes = 0;
  read_corpus(o.data, [&](const std::string&, std::string_view text) {
    text = text.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(0, o.max_bytes - bytes)));
    if (text.empty()) return;
    bytes += static_cast<std::int64_t>(text.size());
    documents.emplace_back(text);
  });
  return documents;
}

TokenizerPtr tokenizer_of(const TextBenchOptions& o, const std::vector<std::string>& documents) {
  const std::int64_t trained_to = o.vocab > 0 ? o.vocab : trained_size(o.tokenizer);
  if (trained_to == 0) return open_tokenizer(o.tokenizer);
  BpeTrainOptions options;
  options.vocab_size = trained_to;
  BpeTrainer trainer(options);
  for (const std::string& document : documents) trainer.add(document);
  return trainer.train();
}

int run_bench_text(const TextBenchOptions& o) {
  const Output out(o.json);
  const std::vector<std::string> documents = documents_of(o);
  const TokenizerPtr tokenizer = tokenizer_of(o, documents);
  const std::unique_ptr<Encoder> encoder = tokenizer->encoder();
  std::size_t bytes = 0, tokens = 0;
  std::vector<std::vector<std::uint32_t>> ids(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    encoder->encode(documents[i], ids[i]);
    bytes += documents[i].size(), tokens += ids[i].size();
    if (tokenizer->decode(ids[i]) != documents[i]) {
      out.line(fmt::format("bench text: document {} does not come back as it was", i));
      return kFailed;
    }
  }
  TimingOptions timing;
  timing.min_seconds = o.min_seconds;
  Samples encoding, decoding;
  std::vector<std::uint32_t> scratch;
  take_samples(encoding, timing, [&](int) {
    const auto fresh = tokenizer->encoder();  // words are met anew
    for (const std::string& document : documents) {
      scratch.clear();
      fresh->encode(document, scratch);
    }
  });
  timing.min_seconds = o.min_seconds / 4.0;
  std::size_t length = 0;
  take_samples(decoding, timing, [&](int) {
    for (const auto& list : ids) length += tokenizer->decode(list).size();
  });
  const double megabytes = static_cast<double>(bytes) / 1e6;
  const double rate = megabytes / (encoding.median_ms() / 1e3), back = megabytes / (decoding.median_ms() / 1e3);
  out.line(fmt::format("{}, one thread, {}", read_cpu_facts().model, compiler_text()));
  const TextTable table(out, {{"data", -24},
                              {"MB", 7},
                              {"tokenizer", -14},
                              {"vocab", 7},
                              {"bytes/token", 11},
                              {"encode MB/s", 11},
                              {"spread", 7},
                              {"decode MB/s", 11}});
  table.head();
  table.row({o.data, fmt::format("{:.1f}", megabytes), tokenizer->kind(), str(tokenizer->vocab_size()),
             fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(tokens)),
             fmt::format("{:.1f}", rate), fmt::format("{:.2f}", encoding.spread()), fmt::format("{:.0f}", back)});
  out.row(JsonValue()
              .set("data", o.data)
              .set("bytes", bytes)
              .set("documents", documents.size())
              .set("tokenizer", tokenizer->kind())
              .set("vocab_size", tokenizer->vocab_size())
              .set("tokens", tokens)
              .set("encode_mb_per_s", rate)
              .set("spread", encoding.spread())
              .set("decode_mb_per_s", back)
              .set("verified", length > 0));
  return kDone;
}

}  // namespace

void add_bench_text(CLI::App& bench, Job& job) {
  CLI::App* text = bench.add_subcommand("text", "time a tokenizer: megabytes of text per second and core");
  static TextBenchOptions o;
  text->add_option("--data", o.data, "text, as for data tokenize")->type_name("SET")->capture_default_str();
  CLI::Option* tokenizer =
      text->add_option("--tokenizer", o.tokenizer,
                       "bytes, a tokenizer.json, a SentencePiece .model, or train:SIZE: trained on the text")
          ->type_name("NAME")
          ->capture_default_str();
  text->add_option("--vocab", o.vocab, "older spelling of --tokenizer train:SIZE")
      ->check(within(limits::kVocab, 257))
      ->excludes(tokenizer)
      ->group("");
  text->add_option("--max-bytes", o.max_bytes, "bytes of the text to use, from its beginning")
      ->check(is_positive())
      ->capture_default_str();
  add_min_time(*text, o.min_seconds);
  add_json(*text, o.json);
  text->callback([&job] { job = [] { return run_bench_text(o); }; });
}

}  // namespace mhla::apps
