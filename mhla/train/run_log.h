// The log of a run: log.jsonl, one JSON object per line, and TensorBoard event files with the numbers of it. A resumed
// run goes on where its checkpoint stood: later lines of the interrupted one are cut off.
#pragma once

#include <filesystem>

#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/tensorboard.h"

namespace mhla::train {

class RunLog {
 public:
  RunLog(const std::filesystem::path& folder, std::int64_t first_step, std::uint64_t keep_bytes);

  // Numbers of a step or an evaluation become scalars as well, "train/loss", "eval/top1", at row["step"]. Both are in
  // their files on return.
  void write(const JsonValue& row);
  // A picture for TensorBoard; its row in log.jsonl is the caller's.
  void image(std::string_view tag, std::int64_t step, const Image& image, std::span<const std::byte> png);
  [[nodiscard]] std::uint64_t bytes() const { return lines_.size(); }
  [[nodiscard]] const std::filesystem::path& events() const { return events_.path(); }

 private:
  AppendFile lines_;
  EventFile events_;
};

}  // namespace mhla::train
