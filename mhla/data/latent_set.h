// A folder of cached latents, made by `mhla data encode`: what an autoencoder and a text encoder said about images and
// captions, so that a training does not ask them again.
//   latents.json            LatentSetConfig; written anew after every shard
//   shard-00000.safetensors, ...
//     latents [n, C, H, W], flipped [n, C, H, W]   as the network sees them: shifted and scaled; flipped: of the mirror
//                                                  image, where asked for; of videos [n, C, F, H, W]
//     labels [n] i64                               of labelled images
//     captions [n, T, C], captions_mask [n, T] i64 states of the captions, mask 0 for padding
//   null.safetensors        captions [1, T, C] and captions_mask of the empty text, where there are captions
// A folder with fewer shards than items need is unfinished and is not opened. Checksums are compared when a shard is
// first read. Nothing here knows LibTorch.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/fields.h"
#include "mhla/io/safetensors.h"

namespace mhla {

inline constexpr const char *kLatentIndex = "latents.json", *kNullCaption = "null.safetensors";

struct LatentSetConfig {
  std::int64_t version = 1;
  std::string source;
  std::string items;
  std::vector<std::int64_t> image;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> captions;
  std::string dtype = "bf16";
  std::int64_t count = 0;
  std::int64_t shard_items = 0;
  std::vector<std::string> classes;
  bool flipped = false;
  std::string autoencoder, autoencoder_sha256;
  std::string posterior;
  std::int64_t seed = 0;
  double scale = 1.0, shift = 0.0;
  std::string text_encoder, text_encoder_sha256;
  std::vector<std::string> sha256;
  std::string null_sha256;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("version", c.version, "of the format: 1");
    visit("source", c.source, "where the images or captions came from");
    visit("items", c.items, "SHA-256 of the items' names with their labels or captions");
    visit("image", c.image, "rows and columns of an image, of a video frames before them; empty: captions only");
    visit("shape", c.shape,
          "channels, rows and columns of a latent, of a video frames after the channels; empty: captions only");
    visit("captions", c.captions, "tokens and channels of a caption; empty: none");
    visit("dtype", c.dtype, "bf16, f16 or f32");
    visit("count", c.count, "items");
    visit("shard_items", c.shard_items, "items of a shard but the last");
    visit("classes", c.classes, "names of the classes; empty: no labels");
    visit("flipped", c.flipped, "whether there are latents of mirrored images");
    visit("autoencoder", c.autoencoder, "its folder");
    visit("autoencoder_sha256", c.autoencoder_sha256, "of its files");
    visit("posterior", c.posterior, "sample or mean of the autoencoder's answer");
    visit("seed", c.seed, "of the samples");
    visit("scale", c.scale, "that latents were multiplied by");
    visit("shift", c.shift, "that was subtracted before");
    visit("text_encoder", c.text_encoder, "its folder");
    visit("text_encoder_sha256", c.text_encoder_sha256, "of its files");
    visit("sha256", c.sha256, "of every shard");
    visit("null_sha256", c.null_sha256, "of null.safetensors");
  }
  bool operator==(const LatentSetConfig&) const = default;

  [[nodiscard]] bool has_latents() const { return !shape.empty(); }
  [[nodiscard]] bool has_labels() const { return !classes.empty(); }
  [[nodiscard]] bool has_captions() const { return !captions.empty(); }
  [[nodiscard]] std::int64_t shards() const { return (count + shard_items - 1) / shard_items; }  // when finished
  [[nodiscard]] std::int64_t items_of(std::int64_t shard) const;
  [[nodiscard]] DType element() const;
};

// Throws with the field, its value and what was expected.
void check(const LatentSetConfig& config);
// A key that is unknown or missing is refused; `label` opens every error.
LatentSetConfig parse_latent_config(std::string_view text, const std::string& label);
std::string write_latent_config(const LatentSetConfig& config);

std::string shard_name(std::int64_t shard);     // "shard-00012.safetensors"
bool is_latent_set(const std::string& folder);  // whether there is a latents.json, finished or not
// Tensors of one shard or of null.safetensors, in file order, as a writer must make them.
struct LatentTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
};
std::vector<LatentTensor> tensors_of(const LatentSetConfig& config, std::int64_t items);

class LatentSet {
 public:
  // Reads latents.json and the head of every shard: names, types and shapes must be those of the index.
  static LatentSet open(const std::string& folder);

  [[nodiscard]] const LatentSetConfig& config() const { return config_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] std::int64_t size() const { return config_.count; }
  [[nodiscard]] std::int64_t latent_size() const;   // numbers of a latent
  [[nodiscard]] std::int64_t caption_size() const;  // numbers of a caption, T * C

  // Several threads may read at once. The first to touch a shard compares its checksum: an Error names the file.
  void latent(std::int64_t item, bool flipped, float* out) const;
  [[nodiscard]] std::int64_t label(std::int64_t item) const;
  void caption(std::int64_t item, float* out, std::int64_t* mask) const;
  void null_caption(float* out, std::int64_t* mask) const;
  void verify() const;  // every checksum, label and mask, and that all numbers are finite

 private:
  struct Shard {
    Shard(std::filesystem::path file, std::string sum, std::int64_t count);
    std::filesystem::path path;
    std::string sha256;
    std::int64_t items;
    Safetensors tensors;
    std::once_flag checked;
  };
  LatentSet() = default;
  [[nodiscard]] const Shard& shard_of(std::int64_t item, std::int64_t& row) const;  // checked
  [[nodiscard]] const Shard& checked(Shard& shard) const;
  void read_row(const Shard& shard, const char* name, std::int64_t row, std::int64_t numbers, float* out) const;
  void read_caption(const Shard& shard, std::int64_t row, float* out, std::int64_t* mask) const;

  std::string folder_;
  LatentSetConfig config_;
  std::vector<std::shared_ptr<Shard>> shards_;
  std::shared_ptr<Shard> null_;  // where there are captions
};

}  // namespace mhla
