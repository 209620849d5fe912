// mhla data: what is in a set of images, tokens or latents, whether all of it can be read, and text made into tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/output.h"
#include "apps/commands.h"
#include "apps/commands/data_encode.h"
#include "mhla/core/error.h"
#include "mhla/data/image_stats.h"
#include "mhla/data/latent_set.h"
#include "mhla/data/token_set.h"

namespace mhla::apps {
namespace {

constexpr std::size_t kListedClasses = 12;  // for people; --json has all

struct InfoOptions {
  std::string data = "fashion-mnist";
  std::string split = "all";
  std::int64_t items = 0;
  int threads = 0;
  bool json = false;
};

std::vector<Split> splits_of(const InfoOptions& options) {
  if (options.split == "train") return {Split::kTrain};
  if (options.split == "test") return {Split::kTest};
  if (options.split != "all") fail("data info: split is '", options.split, "', expected train, test or all");
  if (!has_split(options.data, Split::kTest)) return {Split::kTrain};
  return {Split::kTrain, Split::kTest};
}

std::string range_text(int low, int high) { return low == high ? str(low) : str(low, " to ", high); }

std::string classes_text(const ImageSet& set, const ImageStats& stats) {
  const auto [low, high] = std::minmax_element(stats.per_class.begin(), stats.per_class.end());
  const bool even = *low == *high;
  std::vector<std::string> names;
  for (std::size_t c = 0; c < stats.per_class.size() && c < kListedClasses; ++c)
    names.push_back(even ? set.class_names()[c] : fmt::format("{} {}", set.class_names()[c], stats.per_class[c]));
  const bool more = stats.per_class.size() > kListedClasses;
  return fmt::format("{}, {}: {}{}", set.classes(), even ? fmt::format("{} images each", *low) : "by images",
                     fmt::join(names, ", "), more ? ", ..." : "");
}

void describe(const Output& out, const ImageSet& set, const ImageStats& stats) {
  out.line(set.name());
  out.line(fmt::format("  images     {}, {} x {} pixels, {}", set.size(),
                       range_text(stats.min_height, stats.max_height), range_text(stats.min_width, stats.max_width),
                       set.channels() == 1 ? "grey" : "RGB"));
  out.line(fmt::format("  classes    {}", classes_text(set, stats)));
  out.line(fmt::format("  mean       {:.4f}", fmt::join(stats.mean, " ")));
  out.line(fmt::format("  std        {:.4f}", fmt::join(stats.std, " ")));
  if (const std::string text = left_out_text(set.left_out()); !text.empty())
    out.line(fmt::format("  left out   {}; images end in {}", text, readable_endings()));
  out.line(fmt::format("  damaged    {} of {} looked at", stats.damaged, stats.looked_at));
  for (const std::string& one : stats.damage) out.line("             " + one);
  if (stats.damaged > static_cast<std::int64_t>(stats.damage.size())) out.line("             ...");
}

template <class Value>
JsonValue numbers(const std::vector<Value>& values) {
  JsonValue list = JsonValue::array();
  for (const Value value : values) list.push(value);
  return list;
}

JsonValue files_by_ending(const std::vector<LeftOut>& left_out) {
  JsonValue files = JsonValue::object();
  for (const LeftOut& one : left_out) files.set(one.ending, one.files);
  return files;
}

JsonValue row_of(const InfoOptions& options, Split split, const ImageSet& set, const ImageStats& stats) {
  return JsonValue()
      .set("data", options.data)
      .set("split", name_of(split))
      .set("kind", set.kind())
      .set("images", set.size())
      .set("channels", set.channels())
      .set("height", JsonValue::array({stats.min_height, stats.max_height}))
      .set("width", JsonValue::array({stats.min_width, stats.max_width}))
      .set("classes", set.classes())
      .set("class_names", json_list(set.class_names()))
      .set("images_per_class", numbers(stats.per_class))
      .set("mean", numbers(stats.mean))
      .set("std", numbers(stats.std))
      .set("left_out", files_by_ending(set.left_out()))
      .set("looked_at", stats.looked_at)
      .set("damaged", stats.damaged)
      .set("damage", json_list(stats.damage));
}

void describe_tokens(const Output& out, const std::string& folder, const TokenSetInfo& info) {
  out.line(fmt::format("{}: {}{}", folder, info.source,
                       info.valid_source.empty() ? "" : ", held out: " + info.valid_source));
  out.line(fmt::format("  tokenizer  {}, {} tokens, fingerprint {:016x}", info.tokenizer_kind, info.vocab_size,
                       info.fingerprint));
  for (const auto& [name, split] : {std::pair{"train", &info.train}, {"valid", &info.valid}})
    if (split->documents > 0)
      out.line(fmt::format("  {:<9}  {} documents, {} tokens, {} shards", name, split->documents, split->tokens,
                           split->shards.size()));
  if (info.valid_tail) out.line("             held out is the end of the only document");
  out.line(fmt::format("  text       {} bytes, {:.2f} a token", info.bytes,
                       static_cast<double>(info.bytes) / static_cast<double>(info.train.tokens + info.valid.tokens)));
}

JsonValue row_of_tokens(const std::string& folder, const TokenSetInfo& info) {
  return JsonValue()
      .set("data", folder)
      .set("kind", "tokens")
      .set("source", info.source)
      .set("valid_source", info.valid_source)
      .set("valid_tail", info.valid_tail)
      .set("tokenizer", info.tokenizer_kind)
      .set("vocab_size", info.vocab_size)
      .set("fingerprint", fmt::format("{:016x}", info.fingerprint))
      .set("documents", info.train.documents)
      .set("tokens", info.train.tokens)
      .set("valid_documents", info.valid.documents)
      .set("valid_tokens", info.valid.tokens)
      .set("bytes", info.bytes);
}

// Checksums and every token of both splits.
int run_token_info(const InfoOptions& options) {
  const Output out(options.json);
  const TokenSet set = TokenSet::open(options.data);
  set.verify();
  if (set.info().valid.documents > 0) TokenSet::open(options.data, true).verify();
  (void)set.tokenizer();
  describe_tokens(out, options.data, set.info());
  out.row(row_of_tokens(options.data, set.info()));
  return kDone;
}

int run_tokenize(const TokenizeOptions& options, bool json) {
  const Output out(json);
  const TokenSetInfo info =
      tokenize_corpus(options, [&](std::int64_t done) { out.progress(fmt::format("{} documents", done)); });
  out.progress_done();
  describe_tokens(out, options.out, info);
  out.line(fmt::format("  empty      {}", info.empty.size()));
  for (std::size_t i = 0; i < info.empty.size() && i < kListedClasses; ++i) out.line("             " + info.empty[i]);
  for (const std::string& line : text_warnings(info)) complain(line);
  JsonValue row = row_of_tokens(options.out, info);
  out.row(row.set("empty", json_list(info.empty))
              .set("broken", json_list(info.broken))
              .set("not_read", json_list(info.not_read)));
  return kDone;
}

int run_info(const InfoOptions& options) {
  if (is_token_set(options.data)) return run_token_info(options);
  if (is_latent_set(folder_of(options.data))) return run_latent_info(folder_of(options.data), options.json);
  const Output out(options.json);
  set_default_threads(threads_for(options.threads));
  const std::shared_ptr<Executor> executor = default_executor();
  for (const Split split : splits_of(options)) {
    const ImageSetPtr set = open_images(options.data, split);
    const ImageStats stats = image_stats(*set, options.items, *executor, [&](std::int64_t done) {
      out.progress(fmt::format("{}: {} images", set->name(), done));
    });
    out.progress_done();
    describe(out, *set, stats);
    out.row(row_of(options, split, *set, stats));
  }
  return kDone;
}

}  // namespace

void add_data(CLI::App& app, Job& job) {
  CLI::App* data = app.add_subcommand("data", "look at sets of images, tokens and latents, make tokens and latents");
  data->require_subcommand(1);
  CLI::App* info = data->add_subcommand("info", "describe a set of images, tokens or latents, and find damaged files");
  static InfoOptions o;
  info->add_option("--data", o.data,
                   "fashion-mnist, mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR (JPEG, PNG, WebP, BMP, GIF, TIFF), "
                   "a folder of one of these, or a folder of `mhla data tokenize` or `mhla data encode`")
      ->capture_default_str();
  info->add_option("--split", o.split, "train, test or all")->capture_default_str();
  info->add_option("--samples,--items", o.items, "images to look at, spread over the set (default: all)")
      ->check(is_positive());
  add_threads(*info, o.threads);
  add_json(*info, o.json);
  info->callback([&job] { job = [] { return run_info(o); }; });

  CLI::App* tokenize = data->add_subcommand("tokenize", "turn text into tokens, once, for training");
  static TokenizeOptions t;
  static bool json = false;
  tokenize
      ->add_option("--data", t.data,
                   "a text file, .jsonl (field text), a folder of these, sample: a novel that comes with mhla, or "
                   "default: Debian's "
                   "dict-gcide")
      ->capture_default_str();
  tokenize
      ->add_option("--tokenizer", t.tokenizer,
                   "bytes, a tokenizer.json of byte-level BPE, a SentencePiece .model, or train:SIZE")
      ->capture_default_str();
  tokenize->add_option("--out", t.out, "a new folder for the tokenizer, shards and dataset.json")->required();
  tokenize
      ->add_option("--valid", t.valid,
                   "share of the documents to hold out for evaluation, 0 to 0.5; at least one document, or the end of "
                   "a single one")
      ->capture_default_str();
  tokenize->add_option("--valid-data", t.valid_data,
                       "text to hold out, as --data, instead of a share of it; tokenizers are not trained on it");
  tokenize->add_option("--shard-tokens", t.shard_tokens, "tokens of a shard")
      ->check(whole_number(1, std::int64_t{1} << 32))
      ->capture_default_str();
  add_json(*tokenize, json);
  tokenize->callback([&job] { job = [] { return run_tokenize(t, json); }; });
  add_data_encode(*data, job);
}

}  // namespace mhla::apps
