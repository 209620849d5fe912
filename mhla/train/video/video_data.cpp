#include "mhla/train/video/video_data.h"

#include <ATen/Parallel.h>

#include "mhla/core/error.h"
#include "mhla/core/hex.h"
#include "mhla/data/moving_garments.h"
#include "mhla/data/split_items.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// "64x96": rows and columns.
std::pair<std::int64_t, std::int64_t> clip_size(const std::string& text) {
  const std::size_t cross = text.find('x');
  const auto number = [](const std::string& digits) {
    const bool good =
        !digits.empty() && digits.size() < 6 && digits.find_first_not_of("0123456789") == std::string::npos;
    return good ? std::stoll(digits) : 0;
  };
  const std::int64_t rows = number(text.substr(0, cross));
  const std::int64_t columns = cross == std::string::npos ? rows : number(text.substr(cross + 1));
  if (rows < 1 || columns < 1) fail("train: size is '", text, "', expected ROWSxCOLUMNS, such as 64x64");
  return {rows, columns};
}

ClipShape shape_of(const VideoOptions& o) {
  ClipShape shape;
  shape.frames = o.frames, shape.fps = o.fps;
  std::tie(shape.rows, shape.columns) = clip_size(o.size);
  check(shape);
  for (const auto& [name, side] : {std::pair("rows", shape.rows), std::pair("columns", shape.columns)})
    if (side % o.unshuffle != 0)
      fail("train: size has ", side, " ", name, ", expected a multiple of unshuffle = ", o.unshuffle, ": ",
           std::max(o.unshuffle, side / o.unshuffle * o.unshuffle), " is the nearest");
  return shape;
}

std::vector<std::int64_t> numbers_to(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  return all;
}

// `count` of the items, chosen by the seed; 0: all. Clips that are made are as good as any: the first ones.
void cut_items(std::vector<std::int64_t>& items, std::int64_t count, std::int64_t seed, bool made, const char* field,
               const std::string& name) {
  const auto size = static_cast<std::int64_t>(items.size());
  if (count < 0 || count > size) fail("train: ", field, " is ", count, ", expected 0 to the ", size, " of ", name);
  if (count == 0 || count == size) return;
  if (made) {
    items.resize(static_cast<std::size_t>(count));
    return;
  }
  const std::vector<int> one_class(items.size(), 0);
  std::vector<std::int64_t> chosen;
  for (const std::int64_t at : subset_items(one_class, 1, count, static_cast<std::uint64_t>(seed)))
    chosen.push_back(items[static_cast<std::size_t>(at)]);
  items = chosen;
}

class ClipItems final : public VideoItems {
 public:
  ClipItems(VideoSetPtr set, std::vector<std::int64_t> items, CaptionWords words, std::int64_t tokens,
            std::int64_t unshuffle)
      : set_(std::move(set)), items_(std::move(items)), words_(std::move(words)), tokens_(tokens), side_(unshuffle) {}
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  [[nodiscard]] std::vector<std::int64_t> shape() const override {
    const ClipShape& c = set_->shape();
    return {3 * side_ * side_, c.frames, c.rows / side_, c.columns / side_};
  }
  [[nodiscard]] std::string checksum() const override { return str(hex(set_->checksum()), " of ", items_.size()); }
  [[nodiscard]] std::string caption(std::int64_t item) const override { return set_->caption(stored(item)); }

  VideoBatch read(const std::vector<std::int64_t>& items, const torch::Device& device,
                  std::vector<std::string>& damaged) const override {
    const ClipShape& c = set_->shape();
    const auto count = static_cast<std::int64_t>(items.size());
    const auto pinned = [&](torch::ScalarType type) {
      return torch::TensorOptions(type).pinned_memory(device.is_cuda());
    };
    torch::Tensor clips = torch::empty({count, 3, c.frames, c.rows, c.columns}, pinned(torch::kFloat));
    torch::Tensor captions = torch::empty({count, tokens_}, pinned(torch::kLong));
    std::vector<std::string> errors(items.size());
    auto* pixels = clips.data_ptr<float>();
    auto* numbers = captions.data_ptr<std::int64_t>();
    at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t item = stored(items[static_cast<std::size_t>(i)]);
        try {
          words_.encode(set_->caption(item), tokens_, numbers + i * tokens_);
          set_->clip(item, pixels + i * c.numbers());
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(i)] = error.what();
        }
      }
    });
    VideoBatch batch;
    std::vector<std::int64_t> good;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (errors[i].empty())
        good.push_back(static_cast<std::int64_t>(i)), batch.items.push_back(items[i]);
      else
        damaged.push_back(errors[i]);
    }
    if (good.size() < items.size()) {
      const torch::Tensor rows = torch::tensor(good, torch::kLong);
      clips = clips.index_select(0, rows), captions = captions.index_select(0, rows);
    }
    batch.x = unshuffled(clips.to(device, /*non_blocking=*/true), side_);
    batch.captions = captions.to(device, /*non_blocking=*/true);
    return batch;
  }

 private:
  [[nodiscard]] std::int64_t stored(std::int64_t item) const { return items_[static_cast<std::size_t>(item)]; }
  VideoSetPtr set_;
  std::vector<std::int64_t> items_;
  CaptionWords words_;
  std::int64_t tokens_, side_;
};

class LatentItems final : public VideoItems {
 public:
  LatentItems(std::shared_ptr<const LatentSet> set, std::vector<std::int64_t> items)
      : set_(std::move(set)), items_(std::move(items)) {}
  [[nodiscard]] std::string name() const override { return set_->folder(); }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  [[nodiscard]] std::vector<std::int64_t> shape() const override { return set_->config().shape; }
  [[nodiscard]] std::string checksum() const override { return str(set_->config().items, " of ", items_.size()); }
  [[nodiscard]] std::string caption(std::int64_t) const override { return {}; }

  VideoBatch read(const std::vector<std::int64_t>& items, const torch::Device& device,
                  std::vector<std::string>&) const override {
    const LatentSetConfig& c = set_->config();
    const auto count = static_cast<std::int64_t>(items.size());
    const auto options = torch::TensorOptions(torch::kFloat).pinned_memory(device.is_cuda());
    const torch::Tensor x = torch::empty({count, c.shape[0], c.shape[1], c.shape[2], c.shape[3]}, options);
    const torch::Tensor captions = torch::empty({count, c.captions[0], c.captions[1]}, options);
    auto *latents = x.data_ptr<float>(), *states = captions.data_ptr<float>();
    at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
      std::vector<std::int64_t> mask(static_cast<std::size_t>(c.captions[0]));
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t item = items_[static_cast<std::size_t>(items[static_cast<std::size_t>(i)])];
        set_->latent(item, /*flipped=*/false, latents + i * set_->latent_size());
        float* own = states + i * set_->caption_size();
        set_->caption(item, own, mask.data());
        for (std::int64_t t = 0; t < c.captions[0]; ++t)  // Wan sees zeros for padding
          if (mask[static_cast<std::size_t>(t)] == 0) std::fill_n(own + t * c.captions[1], c.captions[1], 0.0F);
      }
    });
    VideoBatch batch;
    batch.x = x.to(device, true), batch.captions = captions.to(device, true), batch.items = items;
    return batch;
  }

 private:
  std::shared_ptr<const LatentSet> set_;
  std::vector<std::int64_t> items_;
};

std::shared_ptr<const LatentSet> opened_video_latents(const fs::path& folder) {
  auto set = std::make_shared<const LatentSet>(LatentSet::open(folder.string()));
  const LatentSetConfig& c = set->config();
  if (c.shape.size() != 4 || !c.has_captions())
    fail("train: ", folder.string(), " has ", c.shape.size() == 4 ? "latents without captions" : "no latents of videos",
         ", expected latents of videos with captions");
  return set;
}

fs::path test_latents(const fs::path& data) {
  for (const char* name : {"val", "validation", "test"})
    if (is_latent_set((data / name).string())) return data / name;
  return {};
}

// Which items are for training and which are held out.
struct Parts {
  std::vector<std::int64_t> train, test;
  bool held_out = false;
};
Parts parts_of(const VideoOptions& o, std::int64_t train_size, std::optional<std::int64_t> test_size, bool made,
               bool unseen, const std::string& name) {
  Parts parts;
  parts.train = numbers_to(train_size);
  if (test_size) {
    parts.test = numbers_to(*test_size);
  } else if (unseen) {
    parts.test = parts.train;
  } else {
    if (!(o.hold_out > 0 && o.hold_out < 1))
      fail("train: hold_out is ", o.hold_out, ", expected above 0 and below 1: ", name, " has no test set");
    const std::vector<int> one_class(parts.train.size(), 0);
    std::tie(parts.train, parts.test) =
        hold_out_items(one_class, 1, o.hold_out, static_cast<std::uint64_t>(o.test_seed));
    parts.held_out = true;
  }
  if (parts.test.empty()) fail("train: hold_out ", o.hold_out, " of ", name, " leaves nothing to evaluate on");
  const auto usual = std::min<std::int64_t>(VideoOptions::kUsualTest, static_cast<std::int64_t>(parts.test.size()));
  cut_items(parts.test, o.test_clips.value_or(usual), o.test_seed, made, "test_clips", name);
  cut_items(parts.train, o.train_clips, o.train.seed, made, "train_clips", name);
  return parts;
}

VideoSource open_video_latents(const VideoOptions& o, bool unseen) {
  const bool whole = is_latent_set(o.data);
  const fs::path test_folder = whole ? fs::path() : test_latents(o.data);
  const auto train = opened_video_latents(whole ? fs::path(o.data) : fs::path(o.data) / "train");
  const auto test = test_folder.empty() ? train : opened_video_latents(test_folder);
  if (train->config().shape != test->config().shape || train->config().captions != test->config().captions)
    fail("train: ", test_folder.string(), " has other shapes than ", train->folder(), ", expected one encoding");
  const Parts parts = parts_of(o, train->size(), test_folder.empty() ? std::nullopt : std::optional(test->size()),
                               /*made=*/false, unseen, train->folder());
  VideoSource source;
  source.train = std::make_shared<LatentItems>(train, parts.train);
  source.test = std::make_shared<LatentItems>(test, parts.test);
  source.held_out = parts.held_out;
  source.autoencoder = train->config().autoencoder, source.pixels = train->config().image;
  const std::vector<std::int64_t>& shape = train->config().captions;
  source.empty_caption = torch::empty({1, shape[0], shape[1]});
  std::vector<std::int64_t> mask(static_cast<std::size_t>(shape[0]));
  train->null_caption(source.empty_caption.data_ptr<float>(), mask.data());
  source.empty_caption *= torch::tensor(mask).view({1, -1, 1}).to(torch::kFloat);
  return source;
}

std::vector<std::string> captions_of(const VideoSet& set) {
  std::vector<std::string> captions;
  for (std::int64_t item = 0; item < set.size(); ++item) captions.push_back(set.caption(item));
  return captions;
}

}  // namespace

torch::Tensor unshuffled(const torch::Tensor& videos, std::int64_t side) {
  const std::int64_t B = videos.size(0), F = videos.size(2), H = videos.size(3) / side, W = videos.size(4) / side;
  return videos.reshape({B, -1, F, H, side, W, side}).permute({0, 1, 4, 6, 2, 3, 5}).reshape({B, -1, F, H, W});
}

torch::Tensor shuffled(const torch::Tensor& places, std::int64_t side) {
  const std::int64_t B = places.size(0), F = places.size(2), H = places.size(3), W = places.size(4);
  return places.reshape({B, -1, side, side, F, H, W})
      .permute({0, 1, 4, 5, 2, 6, 3})
      .reshape({B, -1, F, H * side, W * side});
}

VideoSource source_of(VideoSetPtr train, VideoSetPtr test, const CaptionWords& words, std::int64_t tokens,
                      std::int64_t unshuffle) {
  VideoSource source;
  const auto all = [&](VideoSetPtr set) {
    std::vector<std::int64_t> items = numbers_to(set->size());
    return std::make_shared<ClipItems>(std::move(set), std::move(items), words, tokens, unshuffle);
  };
  source.train = all(std::move(train)), source.test = all(std::move(test));
  source.words = words;
  source.empty_caption = torch::zeros({1, tokens}, torch::kLong);
  words.encode("", tokens, source.empty_caption.data_ptr<std::int64_t>());
  return source;
}

VideoSource open_source(const VideoOptions& o, std::int64_t tokens, const std::optional<CaptionWords>& words,
                        bool unseen) {
  if (is_latent_set(o.data) || is_latent_set((fs::path(o.data) / "train").string()))
    return open_video_latents(o, unseen);
  const ClipShape shape = shape_of(o);
  const VideoSetPtr train = open_videos(o.data, Split::kTrain, shape);
  const VideoSetPtr test = has_test_videos(o.data) ? open_videos(o.data, Split::kTest, shape) : nullptr;
  const Parts parts = parts_of(o, train->size(), test ? std::optional(test->size()) : std::nullopt, train->is_made(),
                               unseen, train->name());
  const CaptionWords own = words              ? *words
                           : train->is_made() ? CaptionWords(garment_words())
                                              : CaptionWords::of(captions_of(*train));
  VideoSource source;
  source.train = std::make_shared<ClipItems>(train, parts.train, own, tokens, o.unshuffle);
  source.test = std::make_shared<ClipItems>(test ? test : train, parts.test, own, tokens, o.unshuffle);
  source.held_out = parts.held_out;
  source.words = own;
  source.empty_caption = torch::zeros({1, tokens}, torch::kLong);
  own.encode("", tokens, source.empty_caption.data_ptr<std::int64_t>());
  return source;
}

TrainingVideos::TrainingVideos(VideoItemsPtr items, const VideoOptions& o)
    : items_(std::move(items)),
      device_(device_of(o.train.device)),
      order_(items_->size(), "clips of " + items_->name(), o.train),
      most_damaged_(o.max_damaged) {}

VideoBatch TrainingVideos::next(std::vector<std::string>& warnings) {
  const ItemOrder::Part part = order_.next();
  std::vector<std::string> damaged;
  VideoBatch batch = items_->read(part.items, device_, damaged);
  batch.epoch = part.epoch, batch.position = part.position;
  for (const std::string& text : damaged)
    if (damaged_.insert(text).second) warnings.push_back("left out: " + text);
  if (static_cast<std::int64_t>(damaged_.size()) > most_damaged_)
    fail("train: ", damaged_.size(), " clips cannot be read, expected at most max_damaged = ", most_damaged_,
         "; the first: ", *damaged_.begin());
  if (batch.items.empty()) fail("train: no clip of a batch can be read; the first: ", damaged.front());
  return batch;
}

void TrainingVideos::seek(const JsonValue& cursor) {
  order_.seek(cursor);
  if (cursor.at("items").as_string() != items_->checksum())
    fail("train: ", items_->name(), " has other clips than the data of the run, or in another order");
}

void each_held_out(const VideoItems& items, const VideoOptions& o, std::vector<std::string>& warnings,
                   const std::function<void(const VideoBatch&)>& visit) {
  const torch::Device device = device_of(o.train.device);
  const std::int64_t batch = share_of(o.train).each;
  const Place& place = o.train.place;
  for (std::int64_t first = place.rank * batch; first < items.size(); first += place.ranks * batch) {
    leave_when_stopped();
    std::vector<std::int64_t> own;
    for (std::int64_t i = first; i < std::min(first + batch, items.size()); ++i) own.push_back(i);
    std::vector<std::string> damaged;
    const VideoBatch read = items.read(own, device, damaged);
    for (const std::string& text : damaged) warnings.push_back("left out: " + text);
    if (!read.items.empty()) visit(read);
  }
}

}  // namespace mhla::train
