#include "mhla/data/preprocess.h"

#include <charconv>

#include "mhla/core/error.h"
#include "mhla/io/json_object.h"

namespace mhla {
namespace {

struct FitName {
  const char* name;
  Fit fit;
};
constexpr FitName kFits[] = {{"pad", Fit::kPadOrResize}, {"resize", Fit::kResize}, {"center_crop", Fit::kCenterCrop}};

struct InterpolationName {
  const char* name;
  Interpolation filter;
};
constexpr InterpolationName kFilters[] = {{"bilinear", Interpolation::kBilinear}, {"bicubic", Interpolation::kBicubic}};

template <class Names>
const auto& called(const Names& names, const char* field, const std::string& name) {
  std::string known;
  for (const auto& one : names) {
    if (name == one.name) return one;
    known += str(known.empty() ? "" : ", ", one.name);
  }
  fail(field, " is '", name, "', expected one of ", known);
}

// The double of the shortest text that reads back to the same float: 0.286 stays 0.286 in a file.
std::vector<double> short_doubles(const std::vector<float>& values) {
  std::vector<double> out;
  for (const float value : values) {
    char text[32];
    const char* end = std::to_chars(text, text + sizeof text, value).ptr;
    std::from_chars(text, end, out.emplace_back());
  }
  return out;
}

std::vector<float> floats(const std::vector<double>& values) {
  std::vector<float> out;
  for (const double value : values) out.push_back(static_cast<float>(value));
  return out;
}

}  // namespace

Preprocess preprocess_of(const Augment& augment) {
  const Augment plain = without_chance(augment);
  Preprocess p;
  p.fit = plain.fit == Fit::kCenterCrop ? "center_crop" : plain.fit == Fit::kResize ? "resize" : "pad";
  p.interpolation = plain.interpolation == Interpolation::kBilinear ? "bilinear" : "bicubic";
  p.crop_fraction = plain.crop_fraction;
  p.mean = short_doubles(plain.mean), p.std = short_doubles(plain.std);
  return p;
}

Augment augment_of(const Preprocess& p, int height, int width, int channels) {
  Augment augment;
  augment.height = height, augment.width = width, augment.channels = channels;
  augment.fit = called(kFits, "fit", p.fit).fit;
  augment.interpolation = called(kFilters, "interpolation", p.interpolation).filter;
  augment.crop_fraction = p.crop_fraction;
  augment.mean = floats(p.mean), augment.std = floats(p.std);
  check_augment(augment);
  if (channels != 0 && augment.mean.size() != 1 && augment.mean.size() != static_cast<std::size_t>(channels))
    fail("mean has ", augment.mean.size(), " values, expected 1 or one for each of ", channels, " channels");
  return augment;
}

Preprocess preprocess_of(const std::string& recipe, const std::string& normalize, const std::string& kind,
                         int channels) {
  Preprocess p;
  const bool photos = recipe == "official" || recipe == "deit" || recipe == "vlt";
  p.fit = photos ? "center_crop" : kind.empty() || kind == "folder" ? "resize" : "pad";
  const Normalization by =
      normalization_called(normalize.empty() ? normalization_name(kind, kind == "folder" ? 3 : channels) : normalize);
  p.mean = short_doubles(by.mean), p.std = short_doubles(by.std);
  return p;
}

Preprocess parse_preprocess(const JsonValue& json, const std::string& label) {
  Preprocess p;
  fields_from_json(p, json, label);
  try {
    augment_of(p, 1, 1, 0);
  } catch (const Error& error) {
    fail(label, ": ", error.what());
  }
  return p;
}

std::optional<Preprocess> read_preprocess(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kPreprocessFile;
  if (!std::filesystem::exists(file)) return {};
  return parse_preprocess(read_json_object(file), file.string());
}

std::string preprocess_text(const JsonValue& json) { return write_json(json, 2) + "\n"; }

JsonValue text_preprocess(const JsonValue& options) {
  JsonValue picked = JsonValue::object();
  const auto pick = [&](const char* key) {
    if (const JsonValue* value = options.find(key)) picked.set(key, *value);
  };
  pick("packing"), pick("context");
  const JsonValue* data = options.find("data");
  if (data == nullptr || !data->is_string() || data->as_string() != "mqar") return picked;
  for (const char* key : {"data", "mqar_pairs", "mqar_vocab", "mqar_skew"}) pick(key);
  return picked;
}

}  // namespace mhla
