// mhla bench data: images per second through decoding and augmentation. Verifies first that one thread and the asked
// number give the same bits. Without --data the images are JPEG files of a photograph's size, made here and held in
// memory, so that the disk plays no part.
#include "apps/commands/bench_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "apps/bench/timing.h"
#include "apps/cli/axes.h"
#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/core/threads.h"
#include "mhla/data/loader.h"
#include "mhla/testing/random.h"

namespace mhla::apps {
namespace {

struct DataBenchOptions {
  std::string data;
  std::string recipe = "deit", image = "224";
  int size = 224;                             // of image
  int photo_height = 375, photo_width = 500;  // the mean of ImageNet
  std::int64_t batch = 64;
  int threads = 0;
  double min_seconds = 3.0;
  bool json = false;
};

// Waves and noise: a JPEG of quality 90 then has about 1.5 bits a pixel, as photographs have.
Image picture(int height, int width, std::uint64_t seed) {
  Random random(seed);
  double waves[3][4];
  for (auto& wave : waves)
    for (double& value : wave) value = random.uniform();
  Image image;
  image.resize(height, width, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c) {
        const double* w = waves[c];
        const double wave = std::sin(0.02 * x * (1 + 4 * w[0]) + 0.03 * y * (1 + 4 * w[1]) + 6 * w[2]);
        image.row(y)[3 * x + c] = static_cast<std::uint8_t>(128 + 70 * wave + 24 * w[3] + 16 * random.uniform());
      }
  return image;
}

class Photos final : public ImageSet {
 public:
  Photos(int height, int width) : height_(height), width_(width) {
    for (std::uint64_t i = 0; i < 32; ++i) files_.push_back(encode_jpeg(picture(height, width, i + 1)));
  }
  [[nodiscard]] std::string name() const override { return str("photos of ", height_, " x ", width_); }
  [[nodiscard]] std::string kind() const override { return "folder"; }
  [[nodiscard]] std::int64_t size() const override { return 1 << 16; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] int channels() const override { return 3; }
  [[nodiscard]] int height() const override { return height_; }
  [[nodiscard]] int width() const override { return width_; }
  [[nodiscard]] int label(std::int64_t /*item*/) const override { return 0; }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return str(name(), ", item ", item); }
  void decode(std::int64_t item, Image& image) const override {
    decode_image(files_[static_cast<std::size_t>(item) % files_.size()], "photo", image);
  }
  [[nodiscard]] double bytes_per_image() const {
    double sum = 0.0;
    for (const auto& file : files_) sum += static_cast<double>(file.size());
    return sum / static_cast<double>(files_.size());
  }

 private:
  int height_, width_;
  std::vector<std::vector<std::byte>> files_;
  std::vector<std::string> names_{"photo"};
};

LoaderOptions loader_options(const DataBenchOptions& o, const ImageSet& set, int threads) {
  LoaderOptions options;
  options.batch_size = o.batch;
  options.threads = threads;
  options.augment = augment_recipe(o.recipe, set, o.size, o.size);
  return options;
}

// The first batches of one thread and of all have the same bits.
bool verified(const DataBenchOptions& o, const ImageSetPtr& set, int threads) {
  Loader alone(set, loader_options(o, *set, 1)), together(set, loader_options(o, *set, threads));
  Batch a, b;
  for (int i = 0; i < 2; ++i)
    if (!alone.next(a) || !together.next(b) || a.images != b.images || a.labels != b.labels || a.weights != b.weights)
      return false;
  return true;
}

// Images per second of each round; workers are warm and the queue is full when a round begins.
Samples time_loader(const DataBenchOptions& o, const ImageSetPtr& set, int threads) {
  Loader loader(set, loader_options(o, *set, threads));
  Batch batch;
  const int warm_up = loader.options().prefetch + 1;
  for (int i = 0; i < warm_up; ++i) loader.next(batch);
  Samples samples;  // seconds per image
  double total = 0.0;
  while (total < o.min_seconds || samples.count() < 5) {
    const double begin = now_seconds();
    std::int64_t images = 0;
    while (now_seconds() - begin < o.min_seconds / 10.0 || images == 0) {
      loader.next(batch);
      images += batch.size;
    }
    const double seconds = now_seconds() - begin;
    samples.add(seconds / static_cast<double>(images));
    total += seconds;
  }
  return samples;
}

// Milliseconds of one thread for one image, decoding alone.
double decode_ms(const DataBenchOptions& o, const ImageSet& set) {
  Samples samples;
  Image image;
  TimingOptions timing;
  timing.min_seconds = o.min_seconds / 4.0;
  const std::int64_t step = std::max<std::int64_t>(1, set.size() / 1000);
  take_samples(samples, timing, [&](int i) { set.decode(i * step % set.size(), image); });
  return samples.median_ms();
}

int run_bench_data(DataBenchOptions o) {
  const std::int64_t side = parse_square(o.image, "bench data: --image");
  expect_within("bench data", "--image", side, limits::kImage);
  o.size = static_cast<int>(side);
  const Output out(o.json);
  const int threads = threads_for(o.threads);
  const double batch = static_cast<double>(o.batch) * 3.0 * o.size * o.size * sizeof(float);
  expect_fits(fmt::format("bench data: batches of {} images", o.batch),
              MemoryEstimate().add("batches", batch * LoaderOptions{}.prefetch));
  const auto photos = o.data.empty() ? std::make_shared<Photos>(o.photo_height, o.photo_width) : nullptr;
  const ImageSetPtr set = photos ? photos : open_images(o.data, Split::kTrain);
  const bool same = verified(o, set, threads);
  out.line(fmt::format("{}, {} threads, {}", read_cpu_facts().model, threads, compiler_text()));
  if (photos) out.line(fmt::format("{}, {:.0f} KB each", set->name(), photos->bytes_per_image() / 1e3));
  if (!same) {
    out.line(fmt::format("bench data: one thread and {} differ", threads));
    return kFailed;
  }
  const double decoding = decode_ms(o, *set);
  const Samples samples = time_loader(o, set, threads);
  const double rate = 1e3 / samples.median_ms();
  const TextTable table(
      out,
      {{"data", -28}, {"recipe", -9}, {"size", 5}, {"threads", 7}, {"images/s", 10}, {"spread", 7}, {"decode ms", 10}});
  table.head();
  table.row({set->name(), o.recipe, str(o.size), str(threads), fmt::format("{:.0f}", rate),
             fmt::format("{:.2f}", samples.spread()), fmt::format("{:.3f}", decoding)});
  out.row(JsonValue()
              .set("data", set->name())
              .set("recipe", o.recipe)
              .set("size", o.size)
              .set("batch", o.batch)
              .set("threads", threads)
              .set("images_per_s", rate)
              .set("spread", samples.spread())
              .set("decode_ms", decoding)
              .set("verified", true));
  return kDone;
}

}  // namespace

void add_bench_data(CLI::App& bench, Job& job) {
  CLI::App* data = bench.add_subcommand("data", "time the loading of images: decoding and augmentation");
  static DataBenchOptions o;
  data->add_option("--data", o.data, "images, as for data info (default: JPEG photographs made in memory)")
      ->type_name("SET");
  data->add_option("--augment,--recipe", o.recipe, fmt::format("recipe: {}", fmt::join(augment_recipes(), ", ")))
      ->type_name("NAME")
      ->capture_default_str();
  data->add_option("--image,--size", o.image, "pixels of a side of the result")
      ->type_name("N|NxN")
      ->capture_default_str();
  data->add_option("--photo-height", o.photo_height, "pixels of the photographs made in memory")
      ->check(within(limits::kImage))
      ->capture_default_str();
  data->add_option("--photo-width", o.photo_width, "pixels of the photographs made in memory")
      ->check(within(limits::kImage))
      ->capture_default_str();
  data->add_option("--batch", o.batch, "images of a batch")->check(within(limits::kBatch))->capture_default_str();
  add_threads(*data, o.threads);
  add_min_time(*data, o.min_seconds);
  add_json(*data, o.json);
  data->callback([&job] { job = [] { return run_bench_data(o); }; });
}

}  // namespace mhla::apps
