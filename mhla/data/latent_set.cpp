#include "mhla/data/latent_set.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/sha256.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostItems = std::int64_t{1} << 40, kMostSide = 1 << 16, kMostShards = 100000;
constexpr const char* kAgain = "; run `mhla data encode` again with the same options";

void expect_sizes(const char* field, const std::vector<std::int64_t>& sizes, std::size_t axes) {
  const bool right = sizes.size() == axes &&
                     std::all_of(sizes.begin(), sizes.end(), [](std::int64_t n) { return n >= 1 && n <= kMostSide; });
  if (!right) fail("'", field, "' is ", shape_text(sizes), ", expected ", axes, " sizes from 1 to ", kMostSide);
}

void expect_sum(const char* field, const std::string& sum) {
  if (sum.size() != 64 || sum.find_first_not_of("0123456789abcdef") != std::string::npos)
    fail("'", field, "' has '", sum, "', expected the 64 digits of a SHA-256");
}

template <class From>
void widen(const ConstView& view, std::int64_t first, std::int64_t count, float* out) {
  const From* from = data_as<From>(view) + first;
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_f32(from[i]);
}

}  // namespace

std::int64_t LatentSetConfig::items_of(std::int64_t shard) const {
  return std::min(shard_items, count - shard * shard_items);
}

DType LatentSetConfig::element() const {
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF32})
    if (name_of(type) == dtype) return type;
  fail("'dtype' is '", dtype, "', expected bf16, f16 or f32");
}

void check(const LatentSetConfig& c) {
  if (c.version != 1) fail("'version' is ", c.version, ", expected 1");
  if (c.count < 1 || c.count > kMostItems) fail("'count' is ", c.count, ", expected 1 to ", kMostItems);
  if (c.shard_items < 1 || c.shard_items > kMostItems)
    fail("'shard_items' is ", c.shard_items, ", expected 1 to ", kMostItems);
  if (c.shards() > kMostShards)
    fail("'shard_items' is ", c.shard_items, ": ", c.count, " items make ", c.shards(), " shards, expected at most ",
         kMostShards);
  if (!c.has_latents() && !c.has_captions()) fail("has neither 'shape' nor 'captions'");
  if (c.has_latents()) {
    const bool video = c.shape.size() == 4;
    expect_sizes("shape", c.shape, video ? 4 : 3), expect_sizes("image", c.image, video ? 3 : 2);
    if (!(std::isfinite(c.scale) && c.scale > 0)) fail("'scale' is ", c.scale, ", expected a positive number");
    if (!std::isfinite(c.shift)) fail("'shift' is ", c.shift, ", expected a number");
    if (c.posterior != "sample" && c.posterior != "mean")
      fail("'posterior' is '", c.posterior, "', expected sample or mean");
  } else if (c.flipped || c.has_labels() || !c.image.empty()) {
    fail("has 'image', 'flipped' or 'classes' without 'shape'");
  }
  if (c.has_captions()) expect_sizes("captions", c.captions, 2), expect_sum("null_sha256", c.null_sha256);
  if (static_cast<std::int64_t>(c.classes.size()) > limits::kClasses.most)
    fail("'classes' has ", c.classes.size(), " names, expected at most ", limits::kClasses.most);
  (void)c.element();
  if (static_cast<std::int64_t>(c.sha256.size()) > c.shards())
    fail("'sha256' has ", c.sha256.size(), " items, but there are ", c.shards(), " shards");
  for (const std::string& sum : c.sha256) expect_sum("sha256", sum);
}

LatentSetConfig parse_latent_config(std::string_view text, const std::string& label) {
  const JsonValue object = parse_json(text, label);
  return labelled(label, [&] {
    LatentSetConfig config;
    fields_from_json(config, object, label);
    for (const std::string& name : field_names<LatentSetConfig>())
      if (!object.contains(name)) fail("'", name, "' is missing");
    check(config);
    return config;
  });
}

std::string write_latent_config(const LatentSetConfig& config) {
  check(config);
  return write_json(fields_to_json(config), 2) + "\n";
}

std::string shard_name(std::int64_t shard) {
  char name[48];
  std::snprintf(name, sizeof name, "shard-%05lld.safetensors", static_cast<long long>(shard));
  return name;
}

bool is_latent_set(const std::string& folder) { return is_there(fs::path(folder) / kLatentIndex); }

std::vector<LatentTensor> tensors_of(const LatentSetConfig& c, std::int64_t items) {
  std::vector<LatentTensor> tensors;
  if (c.has_latents()) {
    std::vector<std::int64_t> shape{items};
    shape.insert(shape.end(), c.shape.begin(), c.shape.end());
    tensors.push_back({"latents", c.element(), shape});
    if (c.flipped) tensors.push_back({"flipped", c.element(), shape});
  }
  if (c.has_labels()) tensors.push_back({"labels", DType::kI64, {items}});
  if (c.has_captions()) {
    tensors.push_back({"captions", c.element(), {items, c.captions[0], c.captions[1]}});
    tensors.push_back({"captions_mask", DType::kI64, {items, c.captions[0]}});
  }
  return tensors;
}

LatentSet::Shard::Shard(fs::path file, std::string sum, std::int64_t count)
    : path(std::move(file)), sha256(std::move(sum)), items(count), tensors(Safetensors::read(path)) {}

LatentSet LatentSet::open(const std::string& folder) {
  const fs::path place(folder), index = place / kLatentIndex;
  if (!is_there(index)) fail(folder, ": ", kLatentIndex, " is missing, expected a folder of `mhla data encode`");
  const std::vector<std::byte> bytes = read_file(index, 256U << 20);
  LatentSet set;
  set.folder_ = folder;
  set.config_ = parse_latent_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index.string());
  const LatentSetConfig& c = set.config_;
  if (const auto there = static_cast<std::int64_t>(c.sha256.size()); there < c.shards())
    fail(index.string(), ": ", there, " of ", c.shards(), " shards are there", kAgain);
  const auto add = [&](const std::string& name, const std::string& sum, const std::vector<LatentTensor>& tensors,
                       std::int64_t items) {
    if (!is_there(place / name)) fail((place / name).string(), ": is missing", kAgain);
    auto shard = std::make_shared<Shard>(place / name, sum, items);
    for (const LatentTensor& want : tensors) {
      const auto found = shard->tensors.find(want.name);
      if (!found) fail(shard->path.string(), ": ", want.name, " is missing", kAgain);
      const Safetensors::Entry entry = shard->tensors.entry(*found);
      if (entry.dtype != want.dtype || entry.shape != want.shape)
        fail(shard->path.string(), ": ", want.name, " is ", name_of(entry.dtype), " ", shape_text(entry.shape),
             ", expected ", name_of(want.dtype), " ", shape_text(want.shape));
    }
    if (shard->tensors.size() != tensors.size())
      fail(shard->path.string(), ": has ", shard->tensors.size(), " tensors, expected ", tensors.size());
    return shard;
  };
  for (std::int64_t i = 0; i < c.shards(); ++i)
    set.shards_.push_back(
        add(shard_name(i), c.sha256[static_cast<std::size_t>(i)], tensors_of(c, c.items_of(i)), c.items_of(i)));
  if (c.has_captions()) {
    LatentSetConfig only;
    only.captions = c.captions, only.dtype = c.dtype;
    set.null_ = add(kNullCaption, c.null_sha256, tensors_of(only, 1), 1);
  }
  return set;
}

std::int64_t LatentSet::latent_size() const {
  std::int64_t numbers = config_.has_latents() ? 1 : 0;
  for (const std::int64_t side : config_.shape) numbers *= side;
  return numbers;
}

std::int64_t LatentSet::caption_size() const {
  return config_.has_captions() ? config_.captions[0] * config_.captions[1] : 0;
}

const LatentSet::Shard& LatentSet::checked(Shard& shard) const {
  std::call_once(shard.checked, [&] {
    if (const std::string sum = file_sha256(shard.path); sum != shard.sha256)
      fail(shard.path.string(), ": SHA-256 is ", sum, ", expected ", shard.sha256, ": the file is damaged", kAgain);
  });
  return shard;
}

const LatentSet::Shard& LatentSet::shard_of(std::int64_t item, std::int64_t& row) const {
  if (item < 0 || item >= config_.count) fail(folder_, ": item ", item, ", expected 0 to ", config_.count - 1);
  row = item % config_.shard_items;
  return checked(*shards_[static_cast<std::size_t>(item / config_.shard_items)]);
}

void LatentSet::read_row(const Shard& shard, const char* name, std::int64_t row, std::int64_t numbers,
                         float* out) const {
  const ConstView view = shard.tensors.view(name);
  const std::int64_t first = row * numbers;
  switch (view.dtype) {
    case DType::kBF16: return widen<bf16>(view, first, numbers, out);
    case DType::kF16: return widen<f16>(view, first, numbers, out);
    default: std::copy_n(data_as<float>(view) + first, numbers, out);
  }
}

void LatentSet::latent(std::int64_t item, bool flipped, float* out) const {
  if (!config_.has_latents()) fail(folder_, ": has no latents");
  if (flipped && !config_.flipped) fail(folder_, ": has no flipped latents, expected a set made with --flip");
  std::int64_t row = 0;
  const Shard& shard = shard_of(item, row);
  read_row(shard, flipped ? "flipped" : "latents", row, latent_size(), out);
}

std::int64_t LatentSet::label(std::int64_t item) const {
  if (!config_.has_labels()) fail(folder_, ": has no labels");
  std::int64_t row = 0;
  const Shard& shard = shard_of(item, row);
  const std::int64_t label = data_as<std::int64_t>(shard.tensors.view("labels"))[row];
  if (label < 0 || label >= static_cast<std::int64_t>(config_.classes.size()))
    fail(shard.path.string(), ": label ", label, " of item ", item, ", expected 0 to ", config_.classes.size() - 1);
  return label;
}

void LatentSet::read_caption(const Shard& shard, std::int64_t row, float* out, std::int64_t* mask) const {
  read_row(shard, "captions", row, caption_size(), out);
  const std::int64_t tokens = config_.captions[0];
  const auto* from = data_as<std::int64_t>(shard.tensors.view("captions_mask")) + row * tokens;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (from[i] != 0 && from[i] != 1)
      fail(shard.path.string(), ": captions_mask has ", from[i], " in row ", row, ", expected 0 or 1");
    mask[i] = from[i];
  }
}

void LatentSet::caption(std::int64_t item, float* out, std::int64_t* mask) const {
  if (!config_.has_captions()) fail(folder_, ": has no captions");
  std::int64_t row = 0;
  const Shard& shard = shard_of(item, row);
  read_caption(shard, row, out, mask);
}

void LatentSet::null_caption(float* out, std::int64_t* mask) const {
  if (!config_.has_captions()) fail(folder_, ": has no captions");
  read_caption(checked(*null_), 0, out, mask);
}

void LatentSet::verify() const {
  std::vector<float> numbers(static_cast<std::size_t>(std::max(latent_size(), caption_size())));
  std::vector<std::int64_t> mask(config_.has_captions() ? static_cast<std::size_t>(config_.captions[0]) : 0);
  const auto expect_finite = [&](std::int64_t count, std::int64_t item, const char* what) {
    const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::any_of(numbers.begin(), end, [](float x) { return !std::isfinite(x); }))
      fail(folder_, ": the ", what, " of item ", item, " has a NaN or infinite number");
  };
  for (std::int64_t item = 0; item < config_.count; ++item) {
    for (const bool flipped : {false, true}) {
      if (!config_.has_latents() || (flipped && !config_.flipped)) continue;
      latent(item, flipped, numbers.data());
      expect_finite(latent_size(), item, flipped ? "flipped latent" : "latent");
    }
    if (config_.has_labels()) (void)label(item);
    if (!config_.has_captions()) continue;
    caption(item, numbers.data(), mask.data());
    expect_finite(caption_size(), item, "caption");
  }
  if (config_.has_captions()) null_caption(numbers.data(), mask.data());
}

}  // namespace mhla
