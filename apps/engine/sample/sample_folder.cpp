#include "apps/engine/sample/sample_folder.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/image_output.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/io/quick_file.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char *kSettings = "sample.json", *kImages = "images", *kPreviews = "previews", *kSheet = "sheet.png",
                     *kNpz = "samples.npz";

bool has_nothing(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != ".lock") return false;
  return true;
}

// Of the files of `mhla sample`, so that nothing else is removed: "000012.png", "000012-class7.png".
bool is_ours(const fs::path& file) {
  const std::string name = file.filename().string();
  return file.extension() == ".png" && name.find_first_not_of("0123456789") >= 6 &&
         name.find_first_not_of("0123456789") != std::string::npos;
}

void remove_images(const fs::path& folder) {
  std::error_code none;
  std::vector<fs::path> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
    if (is_ours(entry.path())) all.push_back(entry.path());
  for (const fs::path& path : all) fs::remove(path);
  fs::remove(folder, none);  // where it is empty
}

std::string padded(std::int64_t number, std::size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

// An image may travel: of a path only the last folder and the file.
std::string short_path(const std::string& text) {
  const fs::path path = text;
  return (path.parent_path().filename() / path.filename()).string();
}

std::string setting_text(const JsonValue& value) { return value.is_string() ? value.as_string() : write_json(value); }

}  // namespace

SampleFolder::SampleFolder(const SamplePlan& plan, const SampleImagesRequest& request)
    : plan_(plan), folder_(request.out), replaces_(request.overwrite) {
  if (!is_there(folder_)) return;
  if (!is_folder(folder_)) fail(kSampleCommand, ": --out is ", request.out, ", which is a file, expected a folder");
  const fs::path settings = folder_ / kSettings;
  if (!is_there(settings)) {
    replaces_ = false;
    if (has_nothing(folder_)) return;
    fail(kSampleCommand, ": --out is ", request.out, ", which has files but no ", kSettings,
         ": expected a new folder, or one of `mhla sample`");
  }
  if (request.overwrite) return;
  if (!request.resume)
    fail(kSampleCommand, ": ", request.out,
         " has images already, expected --resume to add what is missing, --overwrite to ",
         "replace them, or another --out");
  expect_same_settings(read_json_object(settings));
  resumes_ = true;
}

// More images of each class than before are taken: those that are there keep their numbers.
void SampleFolder::expect_same_settings(const JsonValue& there) const {
  std::vector<std::string> keys;
  for (const JsonValue* one : {&plan_.settings, &there})
    for (const JsonValue::Member& member : one->members()) keys.push_back(member.key);
  const auto said = [](const JsonValue* value) {
    return value == nullptr ? std::string("none") : setting_text(*value);
  };
  for (const std::string& key : keys) {
    const JsonValue *old = there.find(key), *now = plan_.settings.find(key);
    if (old != nullptr && now != nullptr && *old == *now) continue;
    const bool more = key == "per_class" && old != nullptr && old->is_number() && old->as_int() < plan_.per_class;
    if (more) continue;
    if (key.ends_with(kChecksum) && old != nullptr && now != nullptr)
      fail(kSampleCommand, ": ",
           said(plan_.settings.find(key.substr(0, key.size() - std::string_view(kChecksum).size()))),
           " has changed since ", folder_.string(),
           " was begun, expected the same weights, --overwrite or another --out");
    fail(kSampleCommand, ": the images in ", folder_.string(), " are made with ", key, " ", said(old), ", now it is ",
         said(now), ": expected the same settings, --overwrite or another --out");
  }
}

void SampleFolder::clear() const {
  fs::remove(folder_ / kSheet), fs::remove(folder_ / kNpz);
  remove_images(folder_ / kImages), remove_images(folder_ / kPreviews);
  fs::remove(folder_ / kSettings);  // the last: until then it can be overwritten again
}

void SampleFolder::begin() {
  OutputFolder place(folder_);  // what cannot begin leaves nothing
  for (const char* name : {".lock", kSettings}) place.claim(name);
  lock_ = std::make_unique<train::RunLock>(folder_, "sampling into");
  remove_partial_files(folder_);
  if (replaces_) clear();
  write_file(folder_ / kSettings, write_json(plan_.settings, 2) + "\n");
  place.keep();
  fs::create_directories(folder_ / kImages);
  remove_partial_files(folder_ / kImages);
}

fs::path SampleFolder::image_path(std::int64_t number) const {
  const std::string end = plan_.prompts.empty() ? str("-class", plan_.classes[plan_.kind_of(number)]) : "";
  return folder_ / kImages / str(padded(number, 6), end, ".png");
}

// A power cut may leave an empty or damaged file: images are written without waiting for the disk.
bool SampleFolder::is_whole(std::int64_t number) const {
  const fs::path path = image_path(number);
  return is_there(path) && is_whole_png(read_file(path));
}

std::vector<std::int64_t> SampleFolder::missing() const {
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; number < plan_.count(); ++number)
    if (!resumes_ || !is_whole(number)) numbers.push_back(number);
  return numbers;
}

void SampleFolder::end() const { sync_files(folder_); }

void SampleFolder::write_image(std::int64_t number, const Image& image) const {
  ImageText text{{"Software", "mhla " MHLA_VERSION}, {"number", std::to_string(number)}};
  for (const JsonValue::Member& member : plan_.settings.members()) {
    const std::size_t kind = plan_.kind_of(number);
    if (member.key == "classes") {
      const std::int64_t label = plan_.classes[kind];
      text.emplace_back("class", std::to_string(label));
      text.emplace_back("class_name", plan_.generator.class_names[static_cast<std::size_t>(label)]);
    } else if (member.key == "prompts") {
      text.emplace_back("prompt", plan_.prompts[kind]);
    } else if (member.key == "weights" || member.key == "vae" || member.key == "text_encoder") {
      text.emplace_back(member.key, short_path(member.value.as_string()));
    } else if (member.key != "per_class") {  // which says nothing of one image
      text.emplace_back(member.key, setting_text(member.value));
    }
  }
  write_file_quickly(image_path(number), encode_png(image, text));
}

void SampleFolder::write_preview(std::int64_t number, std::int64_t step, const Image& image) const {
  fs::create_directories(folder_ / kPreviews);
  write_file(folder_ / kPreviews / str(padded(number, 6), "-step-", padded(step, 4), ".png"), encode_png(image));
}

fs::path SampleFolder::write_sheet(Plane sheet) const {
  const std::int64_t count = std::min(plan_.count(), sheet[0] * sheet[1]);
  std::vector<Image> images;
  for (std::int64_t number = 0; number < count; ++number) images.push_back(read_image(image_path(number)));
  fs::path path = folder_ / kSheet;
  write_file(path, encode_png(image_grid(images, static_cast<int>(sheet[1]))));
  return path;
}

fs::path SampleFolder::write_npz() const {
  fs::path path = folder_ / kNpz;
  NpzWriter file(path);
  const std::int64_t count = plan_.count();
  file.begin("arr_0", DType::kU8, {count, plan_.images[0], plan_.images[1], 3});
  for (std::int64_t number = 0; number < count; ++number) {
    Image image = read_image(image_path(number));
    convert_channels(image, 3);  // the evaluator has no other
    file.write(std::as_bytes(std::span(image.pixels)));
  }
  file.end();
  if (plan_.prompts.empty()) {
    std::vector<std::int64_t> labels;
    for (std::int64_t number = 0; number < count; ++number) labels.push_back(plan_.classes[plan_.kind_of(number)]);
    file.begin("arr_1", DType::kI64, {count});
    file.write(std::as_bytes(std::span(labels)));
    file.end();
  }
  file.commit();
  return path;
}

}  // namespace mhla::apps
