// A small set of latents on the disk, for tests of what reads one.
#pragma once

#include <filesystem>
#include <string>

#include "mhla/data/latent_set.h"
#include "mhla/io/file.h"
#include "mhla/io/sha256.h"

namespace mhla {

struct MadeLatents {
  std::int64_t count = 7, shard_items = 3;
  bool labels = true, flipped = true, captions = false, latents = true, video = false;
  std::string dtype = "f32";
};

// Number `i` of item `n` is n + i / 16, of the mirror image the negative; label n mod 3; a caption has n tokens.
inline LatentSetConfig make_latent_set(const std::string& folder, const MadeLatents& made = {}) {
  namespace fs = std::filesystem;
  fs::create_directories(folder);
  LatentSetConfig c;
  c.source = "made", c.items = sha256({}), c.dtype = made.dtype, c.count = made.count;
  c.shard_items = made.shard_items, c.flipped = made.flipped && made.latents;
  if (made.latents) c.image = {16, 24}, c.shape = {4, 2, 3}, c.posterior = "mean", c.scale = 0.5;
  if (made.video) c.image = {5, 32, 48}, c.shape = {4, 2, 4, 6};
  if (made.labels) c.classes = {"ant", "bee", "cow"};
  if (made.captions) c.captions = {5, 2};
  const auto write = [&](const std::string& name, const std::vector<LatentTensor>& tensors, std::int64_t first) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<NamedView> views;
    memory.reserve(tensors.size());
    for (const LatentTensor& t : tensors) {
      const std::int64_t numbers = View(nullptr, t.dtype, t.shape).numel(), row = numbers / t.shape[0];
      memory.emplace_back(static_cast<std::size_t>(numbers * size_of(t.dtype)));
      for (std::int64_t i = 0; i < numbers; ++i) {
        const std::int64_t item = first + i / row, at = i % row;
        if (t.name == "labels")
          reinterpret_cast<std::int64_t*>(memory.back().data())[i] = item % 3;
        else if (t.name == "captions_mask")
          reinterpret_cast<std::int64_t*>(memory.back().data())[i] = at < item ? 1 : 0;
        else
          store_f64(memory.back().data(), t.dtype, i,
                    (t.name == "flipped" ? -1.0 : 1.0) * (static_cast<double>(item) + static_cast<double>(at) / 16));
      }
      views.push_back({t.name, ConstView(memory.back().data(), t.dtype, t.shape)});
    }
    write_safetensors(fs::path(folder) / name, views);
    return file_sha256(fs::path(folder) / name);
  };
  if (made.captions) {
    LatentSetConfig only;
    only.captions = c.captions, only.dtype = c.dtype;
    c.null_sha256 = write(kNullCaption, tensors_of(only, 1), 1);
  }
  for (std::int64_t i = 0; i < c.shards(); ++i)
    c.sha256.push_back(write(shard_name(i), tensors_of(c, c.items_of(i)), i * c.shard_items));
  write_file(fs::path(folder) / kLatentIndex, write_latent_config(c));
  return c;
}

}  // namespace mhla
