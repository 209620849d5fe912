// A set of short video clips with captions: folders of videos, or moving garments, which are made as they are asked for
// (moving_garments.h). All clips of a set have one shape. What is said about an item depends on its number alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mhla/data/image_set.h"

namespace mhla {

// A clip of a file is its beginning: `frames` frames, `fps` of them a second, where a frame is the last one that is
// shown at its time; 0: every frame as it comes. Frames are scaled to cover rows x columns (Pillow's bicubic filter),
// and the middle is cut out. Folders of images say no rate: each of their images is a frame.
struct ClipShape {
  std::int64_t frames = 16, rows = 64, columns = 64;
  double fps = 0;

  [[nodiscard]] std::int64_t numbers() const { return 3 * frames * rows * columns; }
  bool operator==(const ClipShape&) const = default;
};
// Throws with the field, its value and what was expected.
void check(const ClipShape& shape);

class VideoSet {
 public:
  virtual ~VideoSet() = default;
  [[nodiscard]] virtual std::string name() const = 0;  // "moving-garments, train"
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual const ClipShape& shape() const = 0;
  [[nodiscard]] virtual std::string caption(std::int64_t item) const = 0;
  [[nodiscard]] virtual std::string item_name(std::int64_t item) const = 0;
  // Whether clips are computed from their number, so that there are as many as anyone wants.
  [[nodiscard]] virtual bool is_made() const { return false; }
  // A number of all names and captions: another set has another.
  [[nodiscard]] virtual std::uint32_t checksum() const = 0;
  // [3, frames, rows, columns], red first, -1 to 1. Several threads may read at once. An Error says which file is
  // damaged or too short, and how.
  virtual void clip(std::int64_t item, float* out) const = 0;
};

using VideoSetPtr = std::shared_ptr<const VideoSet>;

// `data` is one of
//   moving-garments            made of Debian's dataset-fashion-mnist
//   moving-garments:FOLDER     made of the IDX files of a folder
//   folder:FOLDER, FOLDER      videos and folders of images, below train/ and val/ (or test/) where these exist; the
//                              caption of a.mp4 or of the folder a is in a.txt beside it, or all of them are lines
//                              {"video": "a.mp4", "caption": "..."} of captions.jsonl
// Throws an Error that says what was looked for and where.
VideoSetPtr open_videos(const std::string& data, Split split, const ClipShape& shape);
// Whether `data` has clips to test on, without reading it.
bool has_test_videos(const std::string& data);

// Clips in memory, for tests.
struct MemoryClips {
  std::string name;
  ClipShape shape;
  std::vector<std::vector<float>> clips;
  std::vector<std::string> captions;
};
VideoSetPtr videos_in_memory(MemoryClips clips);

}  // namespace mhla
