#include "mhla/train/run_log.h"

namespace mhla::train {

RunLog::RunLog(const std::filesystem::path& folder, std::int64_t first_step, std::uint64_t keep_bytes)
    : lines_(folder / "log.jsonl", keep_bytes), events_(folder, first_step) {}

void RunLog::write(const JsonValue& row) {
  lines_.write(write_json(row) + "\n");
  lines_.flush();
  const JsonValue* step = row.find("step");
  if (step == nullptr) return;
  const std::string& kind = row.at("kind").as_string();
  if (kind != "step" && kind != "eval") return;
  for (const JsonValue::Member& member : row.members()) {
    if (member.key == "step" || member.key == "of" || member.key == "eta_s" || !member.value.is_number()) continue;
    events_.scalar((kind == "step" ? "train/" : "eval/") + member.key, step->as_int(), member.value.as_double());
  }
  events_.flush();
}

void RunLog::image(std::string_view tag, std::int64_t step, const Image& image, std::span<const std::byte> png) {
  events_.image(tag, step, image.height, image.width, image.channels, png);
  events_.flush();
}

}  // namespace mhla::train
