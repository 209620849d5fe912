// What `mhla analyze` looks at, as rows: run, image, head, map, mix and growth. Matrices of attention are looked at one
// head at a time, on all threads.
#include "apps/engine/analyze.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <sstream>

#include "apps/engine/training.h"
#include "mhla/analysis/networks/model_attention.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/core/threads.h"
#include "mhla/io/file.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/train/classify/open_classifier.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

constexpr const char* kAnalyzeCommand = "analyze";

JsonValue pair(std::int64_t a, std::int64_t b) { return JsonValue::array({a, b}); }

JsonValue numbers(const std::vector<double>& values) {
  JsonValue::Array list;
  list.reserve(values.size());
  for (const double value : values) list.emplace_back(value);
  return list;
}

// Mean and standard deviation over samples.
struct Spread {
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  void add(double x) { sum += x, squares += x * x, ++count; }
  [[nodiscard]] JsonValue json() const {
    if (count == 0) return {};
    const double mean = sum / static_cast<double>(count);
    return JsonValue()
        .set("mean", mean)
        .set("std", std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean * mean)));
  }
};

// The samples of a run: images as the network sees them.
struct Samples {
  torch::Tensor images;  // [S, channels, rows, columns]
  std::vector<std::int64_t> labels;
  std::vector<std::string> names, damaged;  // damaged: left out
};

Samples take_samples(const ClassifierRun& run, const ClassifierConfig& network, std::int64_t count) {
  const ImageSetPtr chosen = count < run.images->size() ? subset(run.images, count, /*seed=*/0) : run.images;
  LoaderOptions o;
  o.batch_size = chosen->size(), o.epochs = 1, o.shuffle = o.drop_last = false;
  o.threads = static_cast<int>(run.options.train.threads), o.prefetch = 1;
  o.max_damaged = run.options.max_damaged;
  o.augment = run.augment_for(network);
  if (network.image != run.network.image) o.augment.fit = Fit::kResize;  // the same picture, larger or smaller
  expect_fits(
      str(kAnalyzeCommand, ": ", o.batch_size, " samples of ", network.image[0], " x ", network.image[1], " pixels"),
      MemoryEstimate().add("images", 8.0 * static_cast<double>(o.batch_size) *
                                         static_cast<double>(network.channels * network.image[0]) *
                                         static_cast<double>(network.image[1])));
  Loader loader(chosen, o);
  Batch batch;
  if (!loader.next(batch) || batch.size == 0)
    fail(kAnalyzeCommand, ": ", run.images->name(), " has no image that can be read");
  Samples samples;
  samples.images =
      torch::from_blob(batch.images.data(), {batch.size, batch.channels, batch.height, batch.width}).clone();
  samples.labels = batch.labels, samples.damaged = batch.damaged;
  for (const std::int64_t item : batch.items) samples.names.push_back(chosen->item_name(item));
  return samples;
}

// The samples of two runs, wherever they were started.
void expect_same_images(const std::string& run, const Samples& samples, const std::string& first,
                        const Samples& expected) {
  const auto name = [](const Samples& of, std::size_t i) {
    return i < of.names.size() ? fs::weakly_canonical(of.names[i]).string() : std::string("none");
  };
  for (std::size_t i = 0; i < std::max(samples.names.size(), expected.names.size()); ++i)
    if (name(samples, i) != name(expected, i))
      fail(kAnalyzeCommand, ": ", run, " was tested on other images than ", first, ": sample ", i, " is ",
           name(samples, i), ", expected ", name(expected, i), "; --data sets one for all");
}

// One sample of every class in turn, at most `count`.
std::vector<std::int64_t> one_of_each_class(const Samples& samples, std::int64_t count) {
  std::vector<std::int64_t> shown;
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < samples.labels.size() && static_cast<std::int64_t>(shown.size()) < count; ++i)
    if (seen.insert(samples.labels[i]).second) shown.push_back(static_cast<std::int64_t>(i));
  return shown;
}

void show_image(const Samples& samples, std::int64_t sample, const ImageSet& set, PictureObserver& observer) {
  torch::Tensor pixels = samples.images[sample].to(torch::kDouble);  // stretched to the whole range, for looking at
  pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12);
  const torch::Tensor bytes = (255 * pixels).round().permute({1, 2, 0}).contiguous().to(torch::kByte);
  const auto label = static_cast<std::size_t>(samples.labels[static_cast<std::size_t>(sample)]);
  Picture picture{sample, samples.names[static_cast<std::size_t>(sample)], set.class_names()[label], {}};
  picture.image.resize(static_cast<int>(bytes.size(0)), static_cast<int>(bytes.size(1)),
                       static_cast<int>(bytes.size(2)));
  std::copy_n(bytes.data_ptr<std::uint8_t>(), bytes.numel(), picture.image.pixels.begin());
  observer.picture(picture);
}

// The last numbers of the log: accuracy and speed of the training.
void add_log(const fs::path& folder, const AnalyzeRequest& request, JsonValue& row) {
  const bool other_data = !request.data.empty();  // of which the log knows nothing
  const std::string& which = request.open.weights;
  const char* key = which == "ema" ? "ema_top1" : which == "best" ? "value" : "top1";
  JsonValue top1, speed;
  if (fs::exists(folder / "log.jsonl")) {
    const std::vector<std::byte> bytes = read_file(folder / "log.jsonl", std::uint64_t{256} << 20);
    std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    for (std::string line; std::getline(lines, line);) {
      if (lines.eof()) break;  // without its end: a run that goes on, or was killed
      const JsonValue entry = parse_json(line, (folder / "log.jsonl").string());
      if (const JsonValue* value = entry.find(key); value != nullptr && !other_data) top1 = *value;
      if (const JsonValue* value = entry.find("images_per_s")) speed = *value;
    }
  }
  row.set("top1", top1).set("images_per_s", speed);
}

JsonValue run_row(const fs::path& folder, const ClassifierRun& run, const Samples& samples,
                  const AnalyzeRequest& request) {
  const ClassifierConfig& c = run.network;
  const Layout& layout = run.model->attention_layers().front().layout;
  JsonValue row = JsonValue()
                      .set("kind", "run")
                      .set("folder", folder.string())
                      .set("model", c.model)
                      .set("attention", c.attention)
                      .set("parameters", count_parameters(*run.model))
                      .set("tokens", pair(layout.grid[1], layout.grid[2]))
                      .set("blocks", c.attention == "mhla" ? pair(layout.blocks[1], layout.blocks[2]) : JsonValue())
                      .set("mix_init", c.attention == "mhla" ? JsonValue(c.mix_init) : JsonValue())
                      .set("learn_mix", c.attention == "mhla" ? JsonValue(c.learn_mix) : JsonValue())
                      .set("seed", run.options.train.seed)
                      .set("data", run.images->name())
                      .set("samples", samples.images.size(0));
  add_log(folder, request, row);
  return row;
}

// Sums over samples of one head.
struct HeadSums {
  Spread rank, rank_1pc, effective, stable, entropy;
  std::int64_t bound = 0;
  SpectrumMethod method = SpectrumMethod::kNone;
  void add(const HeadSummary& s, std::int64_t limit) {
    bound = std::max(bound, limit), method = s.method;
    if (s.rank) rank.add(static_cast<double>(*s.rank)), rank_1pc.add(static_cast<double>(*s.rank_1pc));
    if (s.effective_rank) effective.add(*s.effective_rank);
    stable.add(s.stable_rank), entropy.add(s.entropy.normalized);
  }
};

struct Looked {
  HeadSummary summary;
  std::int64_t bound = 0;
};

// Every head of a layer, [samples][heads], on the threads.
std::vector<std::vector<Looked>> look(const LayerAttention& layer, std::int64_t largest, Executor& threads) {
  const std::size_t samples = layer.heads.size(), heads = samples == 0 ? 0 : layer.heads[0].size();
  std::vector<std::vector<Looked>> all(samples, std::vector<Looked>(heads));
  threads.run(static_cast<std::int64_t>(samples * heads), [&](std::int64_t index, int) {
    const std::size_t b = static_cast<std::size_t>(index) / heads, h = static_cast<std::size_t>(index) % heads;
    all[b][h] = {summarize(layer.heads[b][h], largest), rank_bound(layer.heads[b][h])};
  });
  return all;
}

// The tokens of the request, or two of our choice.
std::vector<std::array<std::int64_t, 2>> queries_on(const AnalyzeRequest& look, const Layout& layout) {
  const std::int64_t rows = layout.grid[1], columns = layout.grid[2];
  if (look.queries.empty()) return {{rows / 4, columns / 2}, {rows / 2, columns / 3}};
  for (const auto& [row, column] : look.queries)
    if (row < 0 || row >= rows || column < 0 || column >= columns)
      fail(kAnalyzeCommand, ": --queries has ", row, ",", column, ", expected a row of 0 to ", rows - 1,
           " and a column of 0 to ", columns - 1);
  return look.queries;
}

// Weights of chosen tokens, the mean over heads.
void map_rows(const LayerAttention& layer, std::size_t in_batch, std::int64_t sample, std::int64_t run,
              const AnalyzeRequest& look, Observer& observer) {
  for (const auto& [row, column] : queries_on(look, layer.layout)) {
    const std::int64_t columns = layer.layout.grid[2], N = layer.layout.grid[1] * columns;
    std::vector<double> mean(static_cast<std::size_t>(N)), weights(static_cast<std::size_t>(N));
    for (const HeadAttention& head : layer.heads[in_batch]) {
      attention_row(head, row * columns + column, weights.data());
      for (std::size_t s = 0; s < mean.size(); ++s)
        mean[s] += weights[s] / static_cast<double>(layer.heads[in_batch].size());
    }
    observer.row(JsonValue()
                     .set("kind", "map")
                     .set("run", run)
                     .set("sample", sample)
                     .set("layer", layer.name)
                     .set("query", pair(row, column))
                     .set("grid", pair(layer.layout.grid[1], columns))
                     .set("weights", numbers(mean)));
  }
}

std::size_t map_layer(const AnalyzeRequest& look, std::size_t layers) {
  const auto count = static_cast<std::int64_t>(layers);
  const std::int64_t layer = look.layer < 0 ? count + look.layer : look.layer;
  if (layer < 0 || layer >= count)
    fail(kAnalyzeCommand, ": --layer is ", look.layer, ", expected ", -count, " to ", count - 1);
  return static_cast<std::size_t>(layer);
}

// What is not finite anywhere is not in the logits either.
void expect_finite(const ClassifierRun& run, const torch::Tensor& images) {
  const torch::NoGradGuard no_gradient;
  run.model->eval();
  if (!run.model->forward(images).isfinite().all().item<bool>()) throw not_finite(kAnalyzeCommand, run.weights);
}

// Matrices of heads are looked at in f64, those that a thread works on at once.
void expect_matrices_fit(const ClassifierRun& run, const AnalyzeRequest& look_at, const Executor& threads) {
  double largest = 0;
  for (const AttentionLayer& layer : run.model->attention_layers()) {
    const std::int64_t tokens = layer.layout.grid[1] * layer.layout.grid[2];
    if (tokens <= look_at.largest) largest = std::max(largest, static_cast<double>(tokens));
  }
  expect_fits(str(kAnalyzeCommand, ": --largest ", look_at.largest, " on ", threads.concurrency(), " threads"),
              MemoryEstimate().add("attention matrices", 8 * largest * largest * threads.concurrency()));
}

void head_rows(const ClassifierRun& run, std::int64_t index, const Samples& samples, const AnalyzeRequest& look_at,
               Executor& threads, Observer& observer) {
  const std::size_t layers = run.model->attention_layers().size(), drawn = map_layer(look_at, layers);
  queries_on(look_at, run.model->attention_layers()[drawn].layout);
  expect_matrices_fit(run, look_at, threads);
  const std::vector<std::int64_t> shown = one_of_each_class(samples, look_at.maps);
  std::vector<std::vector<HeadSums>> sums(layers);
  std::vector<std::string> names(layers);
  constexpr std::int64_t kBatch = 8;
  const std::int64_t count = samples.images.size(0);
  for (std::int64_t first = 0; first < count; first += kBatch) {
    const torch::Tensor images =
        samples.images.narrow(0, first, std::min(kBatch, count - first)).to(run.model->parameters()[0].device());
    expect_finite(run, images);
    const std::vector<LayerAttention> seen = attention_of(*run.model, images);
    for (std::size_t l = 0; l < layers; ++l) {
      names[l] = seen[l].name;
      for (const std::vector<Looked>& sample : look(seen[l], look_at.largest, threads)) {
        sums[l].resize(sample.size());
        for (std::size_t h = 0; h < sample.size(); ++h) sums[l][h].add(sample[h].summary, sample[h].bound);
      }
    }
    for (const std::int64_t sample : shown)
      if (sample >= first && sample < first + images.size(0) && !seen[drawn].heads.empty())
        map_rows(seen[drawn], static_cast<std::size_t>(sample - first), sample, index, look_at, observer);
    observer.progress(JsonValue()
                          .set("kind", "progress")
                          .set("text", str("attention of ", run.network.attention, ": ", first + images.size(0), " of ",
                                           count, " images")));
  }
  for (std::size_t l = 0; l < layers; ++l) {
    if (sums[l].empty())
      warn(observer, str(names[l], ": ", run.network.attention, " has no attention matrix to look at"));
    for (std::size_t h = 0; h < sums[l].size(); ++h) {
      const HeadSums& s = sums[l][h];
      observer.row(JsonValue()
                       .set("kind", "head")
                       .set("run", index)
                       .set("layer", names[l])
                       .set("head", h)
                       .set("method", name_of(s.method))
                       .set("rank_bound", s.bound)
                       .set("rank", s.rank.json())
                       .set("rank_1pc", s.rank_1pc.json())
                       .set("effective_rank", s.effective.json())
                       .set("stable_rank", s.stable.json())
                       .set("entropy", s.entropy.json()));
    }
  }
}

void mix_rows(const ClassifierRun& run, std::int64_t index, Observer& observer) {
  for (const MixState& state : mix_states(*run.model)) {
    observer.row(JsonValue()
                     .set("kind", "mix")
                     .set("run", index)
                     .set("layer", state.layer)
                     .set("head", state.head ? JsonValue(*state.head) : JsonValue())
                     .set("M", state.learned.rows)
                     .set("initial", numbers(state.initial.values))
                     .set("learned", numbers(state.learned.values)));
  }
}

// The middle layer of the same weights for another number of tokens or blocks, on a few images.
void growth_row(const ClassifierRun& run, std::int64_t index, const char* what, const ClassifierConfig& config,
                const AnalyzeRequest& look_at, Executor& threads, Observer& observer) {
  constexpr std::int64_t kImages = 2;
  const AnyClassifier model = config == run.network ? run.model : resized(*run.model, config);
  model->to(run.model->parameters()[0].device());
  const Samples samples = take_samples(run, config, std::max<std::int64_t>(kImages, run.network.classes));
  const std::vector<LayerAttention> seen = attention_of(
      *model,
      samples.images.narrow(0, 0, std::min(kImages, samples.images.size(0))).to(model->parameters()[0].device()));
  const LayerAttention& layer = seen[(seen.size() - 1) / 2];
  if (layer.heads.empty()) return;
  HeadSums sums;
  for (const std::vector<Looked>& sample : look(layer, look_at.largest, threads))
    for (const Looked& head : sample) sums.add(head.summary, head.bound);
  if (sums.rank.count == 0) return;
  observer.row(JsonValue()
                   .set("kind", "growth")
                   .set("run", index)
                   .set("by", what)
                   .set("layer", layer.name)
                   .set("N", layer.layout.grid[1] * layer.layout.grid[2])
                   .set("M", layer.layout.blocks[1] * layer.layout.blocks[2])
                   .set("D", layer.heads[0][0].q.columns)
                   .set("rank_bound", sums.bound)
                   .set("rank", sums.rank.json())
                   .set("rank_1pc", sums.rank_1pc.json())
                   .set("stable_rank", sums.stable.json()));
}

void growth_rows(const ClassifierRun& run, std::int64_t index, const AnalyzeRequest& look_at, Executor& threads,
                 Observer& observer) {
  if (run.network.family != "deit" || run.network.official) return;  // one stage: one N and one M
  const auto try_one = [&](const char* what, ClassifierConfig config) {
    const std::int64_t tokens = config.image[0] / config.patch * (config.image[1] / config.patch);
    if (tokens > look_at.largest) return;
    try {
      check(config);
    } catch (const Error&) {
      return;  // blocks that leave one empty: the next count
    }
    growth_row(run, index, what, config, look_at, threads, observer);
    observer.progress(JsonValue().set("kind", "progress").set("text", str("rank by ", what, ", ", tokens, " tokens")));
  };
  for (const std::int64_t half : {1, 2, 3, 4}) {
    ClassifierConfig config = run.network;
    for (std::int64_t& side : config.image) side = side / config.patch * half / 2 * config.patch;
    try_one("N", config);
  }
  if (run.network.attention != "mhla") return;
  for (const std::int64_t side : {1, 2, 3, 4, 5, 7}) {
    ClassifierConfig config = run.network;
    config.blocks = {{side, side}};
    try_one("M", config);
  }
}

}  // namespace

void analyze(const AnalyzeRequest& request, PictureObserver& observer) {
  const std::string& first = request.runs.front();
  Samples expected;
  std::int64_t index = 0;
  for (const std::string& folder : request.runs) {
    OpenOptions open = request.open;
    open.run = folder;
    const ClassifierRun run = open_classifier_run(kAnalyzeCommand, open, request.data, observer);
    const Samples samples = take_samples(run, run.network, std::min(request.samples, run.images->size()));
    if (index == 0) expected.names = samples.names;
    expect_same_images(folder, samples, first, expected);
    const std::string left_out = left_out_warning(*run.images);
    if (index == 0 && !left_out.empty()) warn(observer, left_out);
    for (const std::string& text : samples.damaged)  // once: the other runs have the same
      if (index == 0) warn(observer, "left out: " + text);
    observer.row(run_row(folder, run, samples, request));
    if (index == 0)
      for (const std::int64_t sample : one_of_each_class(samples, request.maps))
        show_image(samples, sample, *run.images, observer);
    const std::shared_ptr<Executor> pool = default_executor();  // of as many threads as open_classifier_run() has set
    head_rows(run, index, samples, request, *pool, observer);
    mix_rows(run, index, observer);
    growth_rows(run, index, request, *pool, observer);
    ++index;
  }
}

}  // namespace mhla::apps
