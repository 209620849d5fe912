// What `mhla data encode` is asked to encode: labelled images, images or videos with captions, or captions.
#pragma once

#include <string>
#include <vector>

#include "apps/engine/requests.h"
#include "mhla/data/image_set.h"
#include "mhla/data/video_set.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

inline constexpr const char* kEncodeCommand = "data encode";

struct EncodeItems {
  std::string source;
  ImageSetPtr images;                 // null without images
  VideoSetPtr videos;                 // null without videos
  std::vector<std::string> classes;   // empty: no labels
  std::vector<std::string> captions;  // of every item; empty: none

  [[nodiscard]] std::int64_t count() const {
    return images ? images->size() : videos ? videos->size() : static_cast<std::int64_t>(captions.size());
  }
  // SHA-256 of names, labels and captions: other items are other latents.
  [[nodiscard]] std::string checksum() const;
};

// With Wan's autoencoder videos (encode_video.h). Without a text encoder labelled images, by their classes. With one,
// all images of a folder with their captions: of
// `--captions FILE`, or x.txt beside x.png; without an autoencoder the captions of that file.
EncodeItems open_items(const EncodeRequest& request, train::Observer& observer);

}  // namespace mhla::apps
