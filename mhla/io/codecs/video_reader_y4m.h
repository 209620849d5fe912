// Y4M from any stream: a file, or what ffmpeg writes. Private to this room.
#pragma once

#include <cstdio>

#include "mhla/io/codecs/video_reader.h"

namespace mhla {

class Y4mReader final : public VideoReader {
 public:
  // `label` opens errors. The stream must outlive it.
  Y4mReader(std::FILE* stream, std::string label, const ImageLimits& limits);
  bool next(Image& frame, double& seconds) override;

 private:
  std::string line(bool& end);  // up to '\n', without it
  void to_rgb(Image& frame) const;

  std::FILE* stream_;
  std::string label_;
  int height_ = 0, width_ = 0;
  int chroma_height_ = 0, chroma_width_ = 0;  // 0: grey
  bool full_range_ = false;
  double rate_ = 0;
  std::int64_t frame_ = 0;
  std::vector<std::uint8_t> planes_;
};

}  // namespace mhla
