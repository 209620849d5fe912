#include "apps/engine/encode/encode_items.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "apps/engine/encode/encode_video.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"
#include "mhla/io/sha256.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostCaptionBytes = 1U << 20, kMostFileBytes = std::uint64_t{1} << 31;

std::string caption_text(const fs::path& path, std::uint64_t most) {
  const std::vector<std::byte> bytes = read_file(path, most);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Without white space around it. Line breaks in it stay.
std::string trimmed(const std::string& text) {
  constexpr const char* kWhite = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kWhite);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kWhite) + 1 - first);
}

struct CaptionLine {
  std::string image, caption;  // image: empty where the line has none
};

std::vector<CaptionLine> caption_lines(const std::string& path) {
  if (!is_there(path)) fail(kEncodeCommand, ": --captions is ", path, ", which is not there");
  std::vector<CaptionLine> lines;
  read_json_lines(caption_text(path, kMostFileBytes), path, [&](const std::string& name, const JsonValue& value) {
    labelled(name, [&] {
      CaptionLine line;
      for (const JsonValue::Member& member : value.members()) {
        if (member.key == "image") line.image = member.value.as_string();
        if (member.key == "caption") line.caption = trimmed(member.value.as_string());
      }
      if (line.caption.empty()) fail("has no 'caption', expected {\"image\": \"a.png\", \"caption\": \"...\"}");
      lines.push_back(std::move(line));
    });
  });
  if (lines.empty()) fail(path, ": has no captions");
  return lines;
}

std::string caption_beside(const fs::path& image) {
  const fs::path path = fs::path(image).replace_extension(".txt");
  if (!is_there(path))
    fail(image.string(), ": has no caption, expected ", path.filename().string(), " beside it, or --captions FILE");
  const std::string caption = trimmed(caption_text(path, kMostCaptionBytes));
  if (caption.empty()) fail(path.string(), ": is empty, expected a caption");
  return caption;
}

// Where images with captions lie: with texts beside them the folder of the split, with --captions all of --data.
fs::path captioned_folder(const EncodeRequest& request) {
  const fs::path root = folder_of(request.data);
  if (!is_folder(root))
    fail(kEncodeCommand, ": --data is ", request.data, ", expected a folder of images with captions");
  const bool test = request.split == "test";
  if (!request.captions.empty()) {
    if (test) fail(kEncodeCommand, ": --split test with --captions, expected one: its lines name the images");
    return root;
  }
  const fs::path folder = folder_of_split(root, test ? Split::kTest : Split::kTrain);
  if (folder.empty())
    fail(kEncodeCommand, ": --split is test, but ", root.string(), " has no train/ with val/ or test/ beside it");
  return folder;
}

// The images that have a line, in the order of their names; others are left out and counted.
EncodeItems captioned_images(const EncodeRequest& request, train::Observer& observer) {
  const fs::path folder = captioned_folder(request);
  EncodeItems items;
  items.source = request.data;
  if (request.split == "test") items.source += ", test";
  const std::vector<std::string> found = image_files_in(folder.string());
  if (found.empty()) fail(folder.string(), ": has no image, expected ", readable_endings(), " files");
  std::vector<ImageFile> files;
  if (request.captions.empty()) {
    for (const std::string& file : found)
      files.push_back({(folder / file).string(), {}}), items.captions.push_back(caption_beside(folder / file));
  } else {
    std::map<std::string, std::string> captions;
    for (const CaptionLine& line : caption_lines(request.captions)) {
      if (line.image.empty()) fail(request.captions, ": a line has no 'image', expected the name of a file in --data");
      if (!std::binary_search(found.begin(), found.end(), line.image))
        fail(request.captions, ": image '", line.image, "' is not in ", folder.string());
      if (!captions.emplace(line.image, line.caption).second)
        fail(request.captions, ": image '", line.image, "' has two captions, expected one");
    }
    for (const auto& [file, caption] : captions)
      files.push_back({(folder / file).string(), {}}), items.captions.push_back(caption);
    if (captions.size() < found.size())
      train::warn(observer, str(found.size() - captions.size(), " images of ", folder.string(), " have no line in ",
                                request.captions, " and are left out"));
  }
  items.images = images_in_files(std::move(files), 3);
  return items;
}

EncodeItems only_captions(const EncodeRequest& request) {
  if (request.captions.empty())
    fail(kEncodeCommand, ": --vae is missing, expected one for images, or --captions FILE to encode captions only");
  EncodeItems items;
  items.source = request.captions;
  for (CaptionLine& line : caption_lines(request.captions)) items.captions.push_back(std::move(line.caption));
  return items;
}

EncodeItems labelled_images(const EncodeRequest& request, train::Observer& observer) {
  if (!request.captions.empty()) fail(kEncodeCommand, ": --captions without --text-encoder, expected both or none");
  EncodeItems items;
  items.source = request.data;
  items.images = open_images(request.data, request.split == "test" ? Split::kTest : Split::kTrain);
  items.classes = items.images->class_names();
  if (request.split == "test") items.source += ", test";
  if (const std::string text = left_out_warning(*items.images); !text.empty()) train::warn(observer, text);
  return items;
}

}  // namespace

std::string EncodeItems::checksum() const {
  Sha256 sum;
  const auto add = [&](const std::string& text) {
    const std::string piece = str(text.size(), ":", text);  // no two lists of texts look alike
    sum.add(std::as_bytes(std::span(piece)));
  };
  for (const std::string& name : classes) add(name);
  for (std::int64_t i = 0; i < count(); ++i) {
    // Without the folder: the same files elsewhere are the same items.
    if (images) add(captions.empty() ? images->item_name(i) : fs::path(images->item_name(i)).filename().string());
    if (videos) add(fs::path(videos->item_name(i)).filename().string());
    if (images && !classes.empty()) add(std::to_string(images->label(i)));
    if (!captions.empty()) add(captions[static_cast<std::size_t>(i)]);
  }
  return sum.digest();
}

EncodeItems open_items(const EncodeRequest& request, train::Observer& observer) {
  if (request.vae.empty() && request.text_encoder.empty())
    fail(kEncodeCommand, ": neither --vae nor --text-encoder is given, expected one or both");
  if (has_wan_vae(request)) return video_items(request);
  if (request.text_encoder.empty()) return labelled_images(request, observer);
  return request.vae.empty() ? only_captions(request) : captioned_images(request, observer);
}

}  // namespace mhla::apps
