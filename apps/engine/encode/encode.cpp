#include "apps/engine/encode/encode.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "apps/engine/caption_states.h"
#include "apps/engine/encode/encode_items.h"
#include "apps/engine/encode/encode_video.h"
#include "apps/engine/model_files.h"
#include "mhla/core/memory.h"
#include "mhla/core/run_failed.h"
#include "mhla/core/threads.h"
#include "mhla/data/adm_crop.h"
#include "mhla/data/latent_set.h"
#include "mhla/diffusion/sample.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/sha256.h"
#include "mhla/io/utf8.h"
#include "mhla/language/caption_tokens.h"
#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/train/opening.h"
#include "mhla/train/run_lock.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using EncodeClock = std::chrono::steady_clock;

constexpr std::int64_t kShardBytes = 128 << 20, kMostShardItems = 4096;

std::string folder_sha256(const fs::path& folder) {
  Sha256 sum;
  for (const fs::path& file : model_files(folder)) {
    const std::string name = file.filename().string();
    sum.add(std::as_bytes(std::span(name)));
    sum.add(MappedFile(file).bytes());
  }
  return sum.digest();
}

std::string absolute_text(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

std::int64_t tensor_bytes(const LatentTensor& tensor) {
  return View(nullptr, tensor.dtype, tensor.shape).numel() * size_of(tensor.dtype);
}

double item_bytes(const LatentSetConfig& config) {
  double bytes = 0;
  for (const LatentTensor& tensor : tensors_of(config, 1)) bytes += static_cast<double>(tensor_bytes(tensor));
  return bytes;
}

// What will be written, from configurations only: no weights are read.
class EncodePlan {
 public:
  EncodePlan(const EncodeRequest& request, train::Observer& observer)
      : request_(request), items_(open_items(request, observer)) {
    config_.source = items_.source, config_.items = items_.checksum();
    config_.count = items_.count(), config_.classes = items_.classes, config_.dtype = request.dtype;
    if (items_.videos) {
      take_video_encoders();
    } else {
      if (!request.vae.empty()) take_autoencoder();
      if (!request.text_encoder.empty()) take_text_encoder(observer);
    }
    config_.shard_items = request.shard_items;
    if (request.shard_items == 0)
      config_.shard_items = std::clamp<std::int64_t>(
          static_cast<std::int64_t>(static_cast<double>(kShardBytes) / item_bytes(config_)), 1, kMostShardItems);
    expect_memory();
  }

  [[nodiscard]] const EncodeItems& items() const { return items_; }
  [[nodiscard]] const LatentSetConfig& config() const { return config_; }
  [[nodiscard]] std::int64_t sana_tokens() const { return request_.caption_tokens > 0 ? request_.caption_tokens : 300; }
  [[nodiscard]] bool crops() const { return request_.image > 0; }
  [[nodiscard]] VideoEncoders* video() const { return video_.get(); }  // or null

 private:
  void take_autoencoder() {
    autoencoder_ = read_autoencoder_config(fs::path(request_.vae) / "config.json");
    const std::int64_t factor = downsampling_of(*autoencoder_);
    const ImageSet& images = *items_.images;
    config_.image = {images.height(), images.width()};
    if (crops()) config_.image = {request_.image, request_.image};
    if (config_.image[0] == 0) {  // of files, which may have any size: the others must have the first one's
      Image first;
      images.decode(0, first);
      config_.image = {first.height, first.width};
    }
    if (config_.image[0] % factor != 0 || config_.image[1] % factor != 0)
      fail(kEncodeCommand, ": images of ", config_.image[0], " x ", config_.image[1], " pixels, expected multiples of ",
           factor, " for the autoencoder", crops() ? "" : ": give --image");
    const auto [channels, scale, shift] = latent_format(*autoencoder_);
    config_.shape = {channels, config_.image[0] / factor, config_.image[1] / factor};
    config_.scale = scale, config_.shift = shift, config_.flipped = request_.flip;
    config_.autoencoder = absolute_text(request_.vae), config_.autoencoder_sha256 = folder_sha256(request_.vae);
    const bool samples = request_.posterior == "sample" && std::holds_alternative<KlConfig>(*autoencoder_);
    config_.posterior = samples ? "sample" : "mean", config_.seed = samples ? request_.seed : 0;
  }

  void take_video_encoders() {
    video_ = std::make_shared<VideoEncoders>(request_, items_);
    video_->describe(config_);
    config_.autoencoder = absolute_text(request_.vae), config_.autoencoder_sha256 = folder_sha256(request_.vae);
    config_.text_encoder = absolute_text(request_.text_encoder);
    config_.text_encoder_sha256 = folder_sha256(request_.text_encoder);
  }

  void take_text_encoder(train::Observer& observer) {
    encoder_ = read_gemma2_config(fs::path(request_.text_encoder) / "config.json");
    const TokenizerPtr tokenizer = caption_tokenizer(kEncodeCommand, request_.text_encoder, encoder_->vocab_size);
    config_.captions = {sana_tokens(), encoder_->hidden_size};
    config_.text_encoder = absolute_text(request_.text_encoder);
    config_.text_encoder_sha256 = folder_sha256(request_.text_encoder);
    text_length_ = caption_tokens(*tokenizer, {""}, sana_instruction(), sana_tokens()).length;
    warn_of_long_captions(*tokenizer, observer);
  }

  // One caption in a large data set is no reason to refuse it, unlike a prompt of `mhla sample`.
  void warn_of_long_captions(const Tokenizer& tokenizer, train::Observer& observer) const {
    std::int64_t long_ones = 0, most = 0;
    const std::string* longest = nullptr;
    for (const std::string& text : items_.captions) {
      const std::int64_t over = caption_tokens(tokenizer, {text}, sana_instruction(), sana_tokens()).left_out[0];
      if (over > 0) ++long_ones;
      if (over > most) most = over, longest = &text;
    }
    if (longest != nullptr)
      train::warn(observer, str(long_ones, " of ", items_.captions.size(), " captions do not fit in ", sana_tokens(),
                                " tokens and lose their ends, '", start_of(*longest), "' the most, ", most,
                                " tokens: --caption-tokens keeps more"));
  }

  void expect_memory() const {
    MemoryEstimate host, device;
    const bool cuda = train::device_of(request_.device).is_cuda();
    MemoryEstimate& network = cuda ? device : host;
    host.add("shard", 2 * item_bytes(config_) * static_cast<double>(std::min(config_.shard_items, config_.count)));
    const auto batch = static_cast<double>(request_.batch);
    if (video_) video_->add_memory(network, cuda);
    if (autoencoder_) {
      const ModelSize size = size_of(*autoencoder_, config_.image[0], config_.image[1]);
      network.add("autoencoder", 4 * size.parameters).add("its activations", 4 * batch * size.passing);
    }
    if (encoder_) {
      const ModelSize size = size_of(*encoder_, text_length_);
      network.add("text encoder", 2 * size.parameters).add("its activations", (cuda ? 2 : 4) * size.passing);
    }
    if (cuda) expect_fits(kEncodeCommand, device, device_memory_at_hand(train::device_of(request_.device).index()));
    expect_fits(kEncodeCommand, host);
  }

  const EncodeRequest& request_;
  EncodeItems items_;
  LatentSetConfig config_;
  std::optional<AutoencoderConfig> autoencoder_;
  std::optional<Gemma2Config> encoder_;
  std::shared_ptr<VideoEncoders> video_;
  std::int64_t text_length_ = 0;
};

// The networks, opened when the first shard asks for them.
class EncodeNetworks {
 public:
  EncodeNetworks(const EncodeRequest& request, const EncodePlan& plan)
      : request_(request), plan_(plan), device_(train::device_of(request.device)) {}

  std::vector<std::byte> shard(std::int64_t number, const std::function<void(std::int64_t)>& progress) {
    const LatentSetConfig& c = plan_.config();
    const std::int64_t first = number * c.shard_items, count = c.items_of(number);
    Weights parts;
    if (c.has_labels()) {
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < count; ++i) labels.push_back(plan_.items().images->label(first + i));
      parts["labels"] = torch::tensor(labels, torch::kLong);
    }
    std::map<std::string, std::vector<torch::Tensor>> rows;
    for (std::int64_t done = 0; done < count; done += request_.batch) {
      const std::int64_t some = std::min(request_.batch, count - done);
      if (c.has_latents()) add_latents(first + done, some, rows);
      if (c.has_captions()) add_captions(first + done, some, rows);
      progress(first + done + some);
    }
    for (auto& [name, some] : rows) parts[name] = torch::cat(some);
    return bytes_of_parts(parts);
  }

  std::vector<std::byte> null_caption() {
    const Conditioning none = plan_.video() != nullptr ? plan_.video()->captions({""}, device_) : encoder().plain({""});
    return bytes_of_parts(
        {{"captions", stored(none.captions, 0, "the empty caption")}, {"captions_mask", none.captions_mask}});
  }

 private:
  using Rows = std::map<std::string, std::vector<torch::Tensor>>;

  static std::vector<std::byte> bytes_of_parts(const Weights& parts) {
    std::vector<NamedView> views;
    for (const auto& [name, value] : parts) views.push_back({name, ops::view_of(value, kEncodeCommand, name.c_str())});
    return safetensors_bytes(views);
  }

  [[nodiscard]] torch::Tensor images(std::int64_t first, std::int64_t count) const {
    const LatentSetConfig& c = plan_.config();
    const std::int64_t rows = c.image[0], columns = c.image[1];
    const torch::Tensor all = torch::empty({count, rows, columns, 3}, torch::kByte);
    auto* const to = all.data_ptr<std::uint8_t>();
    const ImageSet& set = *plan_.items().images;
    default_executor()->run(count, [&](std::int64_t i, int) {
      Image image;
      set.decode(first + i, image);
      convert_channels(image, 3);
      if (plan_.crops()) image = adm_crop(image, static_cast<int>(rows));
      if (image.height != rows || image.width != columns)
        fail(set.item_name(first + i), ": is ", image.height, " x ", image.width, ", expected ", rows, " x ", columns,
             " as the first: give --image to scale all");
      std::copy(image.pixels.begin(), image.pixels.end(), to + i * rows * columns * 3);
    });
    return all.permute({0, 3, 1, 2}).to(device_).to(torch::kFloat).div(127.5).sub(1.0);
  }

  void add_latents(std::int64_t first, std::int64_t count, Rows& rows) {
    if (plan_.video() != nullptr)
      return rows["latents"].push_back(stored(plan_.video()->latents(first, count, device_), first, "the latent"));
    if (!autoencoder_) {
      autoencoder_ = load_autoencoder(request_.vae);
      autoencoder_->to(device_);
      if (autoencoder_->image_channels() != 3)
        fail(request_.vae, ": takes images of ", autoencoder_->image_channels(), " channels, expected 3");
    }
    const torch::NoGradGuard no_gradient;
    const LatentSetConfig& c = plan_.config();
    const torch::Tensor x = images(first, count);
    std::vector<std::int64_t> numbers;  // they key the noise: a shard has the same bytes whenever it is made
    for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
    const auto encoded = [&](const torch::Tensor& some, std::int64_t step) {
      if (c.posterior == "mean") return autoencoder_->encode(some);
      return autoencoder_->encode(some,
                                  keyed_noise(static_cast<std::uint64_t>(c.seed), numbers, step, c.shape, device_));
    };
    rows["latents"].push_back(stored(encoded(x, 0), first, "the latent"));
    if (c.flipped) rows["flipped"].push_back(stored(encoded(x.flip({3}), 1), first, "the flipped latent"));
  }

  void add_captions(std::int64_t first, std::int64_t count, Rows& rows) {
    const auto begin = plan_.items().captions.begin() + first;
    const std::vector<std::string> texts(begin, begin + count);
    const Conditioning states =
        plan_.video() != nullptr ? plan_.video()->captions(texts, device_) : encoder().prompts(texts);
    rows["captions"].push_back(stored(states.captions, first, "the caption"));
    rows["captions_mask"].push_back(states.captions_mask.to(torch::kLong).contiguous());
  }

  CaptionEncoder& encoder() {
    if (!encoder_) encoder_.emplace(kEncodeCommand, request_.text_encoder, plan_.sana_tokens(), device_);
    return *encoder_;
  }

  // In the type of the file, on the host. RunFailed names the first item that is not finite in it.
  [[nodiscard]] torch::Tensor stored(const torch::Tensor& rows, std::int64_t first, const char* what) const {
    const DType type = plan_.config().element();
    const torch::Tensor kept = rows.to(type == DType::kF32    ? torch::kFloat
                                       : type == DType::kBF16 ? torch::kBFloat16
                                                              : torch::kHalf)
                                   .cpu()
                                   .contiguous();
    const torch::Tensor finite = torch::isfinite(kept.to(torch::kFloat)).flatten(1).all(1);
    if (!finite.all().item<bool>())
      throw RunFailed(str(kEncodeCommand, ": ", what, " of item ",
                          first + finite.logical_not().nonzero()[0].item<std::int64_t>(), " is NaN or infinite as ",
                          name_of(type)));
    return kept;
  }

  const EncodeRequest& request_;
  const EncodePlan& plan_;
  torch::Device device_;
  AnyAutoencoder autoencoder_;
  std::optional<CaptionEncoder> encoder_;
};

// The folder: what is there, and what is asked for.
class EncodeTarget {
 public:
  EncodeTarget(const std::string& folder, LatentSetConfig wanted) : folder_(folder), config_(std::move(wanted)) {
    if (is_there(folder) && !is_folder(folder)) fail(kEncodeCommand, ": --out is ", folder, ", which is no folder");
    if (is_latent_set(folder))
      take_over();
    else if (is_there(folder))
      expect_empty();
  }

  // For this process alone, from here on.
  void begin() {
    OutputFolder made(folder_);
    lock_.emplace(folder_, "encoding into");
    remove_partial_files(folder_);
    made.keep();
  }

  [[nodiscard]] bool has_shard(std::int64_t shard) const {
    return shard < static_cast<std::int64_t>(config_.sha256.size()) &&
           is_as_recorded(shard_name(shard), config_.sha256[static_cast<std::size_t>(shard)]);
  }
  [[nodiscard]] bool has_null() const {
    return !config_.has_captions() ||
           (!config_.null_sha256.empty() && is_as_recorded(kNullCaption, config_.null_sha256));
  }
  void put_shard(std::int64_t shard, const std::vector<std::byte>& bytes) {
    write_file(folder_ / shard_name(shard), bytes);
    if (const auto at = static_cast<std::size_t>(shard); at < config_.sha256.size())
      config_.sha256[at] = sha256(bytes);
    else
      config_.sha256.push_back(sha256(bytes));
    write_index();
  }
  void put_null(const std::vector<std::byte>& bytes) {
    write_file(folder_ / kNullCaption, bytes);
    config_.null_sha256 = sha256(bytes);
    write_index();
  }
  void write_index() const { write_file(folder_ / kLatentIndex, write_latent_config(config_)); }
  [[nodiscard]] const LatentSetConfig& config() const { return config_; }

 private:
  [[nodiscard]] bool is_as_recorded(const std::string& name, const std::string& sum) const {
    return is_there(folder_ / name) && file_sha256(folder_ / name) == sum;
  }

  void take_over() {
    const fs::path index = folder_ / kLatentIndex;
    const std::vector<std::byte> bytes = read_file(index, 256U << 20);
    const LatentSetConfig there =
        parse_latent_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index.string());
    config_.sha256 = there.sha256, config_.null_sha256 = there.null_sha256;
    // The same models elsewhere are the same models.
    config_.autoencoder = there.autoencoder, config_.text_encoder = there.text_encoder;
    const JsonValue old = fields_to_json(there), now = fields_to_json(config_);
    for (const JsonValue::Member& member : old.members()) {
      const JsonValue& value = now.at(member.key);
      if (value == member.value) continue;
      if (member.key == "items")
        fail(index.string(), ": was made of other images, labels or captions, expected the same, or another --out");
      fail(index.string(), ": '", member.key, "' is ", write_json(member.value), ", but now it would be ",
           write_json(value), ": give the same options, or another --out");
    }
  }

  void expect_empty() const {
    for (const auto& item : fs::directory_iterator(folder_)) {
      const std::string name = item.path().filename().string();
      if (name.front() != '.' && name != kNullCaption)
        fail(kEncodeCommand, ": ", folder_.string(), " has ", name,
             ", expected a new folder, or one of `mhla data encode`");
    }
  }

  fs::path folder_;
  LatentSetConfig config_;
  std::optional<train::RunLock> lock_;
};

}  // namespace

void encode_data(const EncodeRequest& request, train::Observer& observer) {
  train::TrainOptions options;
  options.device = request.device, options.threads = request.threads;
  const EncodePlan plan(request, observer);
  EncodeTarget target(request.out, plan.config());
  train::prepare(options, observer);
  target.begin();

  const LatentSetConfig& c = plan.config();
  std::vector<std::int64_t> missing;
  std::int64_t left = 0;
  for (std::int64_t i = 0; i < c.shards(); ++i)
    if (!target.has_shard(i)) missing.push_back(i), left += c.items_of(i);
  observer.row(JsonValue()
                   .set("kind", "start")
                   .set("items", c.count)
                   .set("shards", c.shards())
                   .set("kept", c.shards() - static_cast<std::int64_t>(missing.size()))
                   .set("bytes_per_item", item_bytes(c)));
  EncodeNetworks networks(request, plan);
  if (!target.has_null()) target.put_null(networks.null_caption());
  const EncodeClock::time_point start = EncodeClock::now();
  std::int64_t done = 0;
  for (const std::int64_t shard : missing) {
    const std::int64_t before = done, first = shard * c.shard_items;
    target.put_shard(shard, networks.shard(shard, [&](std::int64_t next) {
      done = before + next - first;
      const double spent = std::chrono::duration<double>(EncodeClock::now() - start).count();
      observer.progress(JsonValue()
                            .set("kind", "encode")
                            .set("step", c.count - left + done)
                            .set("of", c.count)
                            .set("items_per_s", static_cast<double>(done) / std::max(spent, 1e-3))
                            .set("eta_s", spent / static_cast<double>(done) * static_cast<double>(left - done)));
    }));
  }
  observer.row(fields_to_json(target.config()).set("kind", "end").set("path", request.out).set("encoded", left));
}

}  // namespace mhla::apps
