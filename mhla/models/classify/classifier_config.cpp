// The named models, and what a configuration may not be.
#include "mhla/models/classify/classifier_config.h"

#include <algorithm>

#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/transformers_config.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

ClassifierConfig deit(std::int64_t dim, std::int64_t heads) {
  ClassifierConfig c;
  c.dims = {dim}, c.heads = {heads};
  return c;
}

ClassifierConfig vlt(std::vector<std::int64_t> dims, std::vector<std::int64_t> depths, std::vector<std::int64_t> heads,
                     double drop_path) {
  ClassifierConfig c;
  c.family = "vlt", c.patch = 4;
  c.dims = std::move(dims), c.depths = std::move(depths), c.heads = std::move(heads);
  c.mlp_ratio = 3.5, c.drop_path = drop_path;
  c.blocks = {{7, 7}, {4, 4}};
  c.lepe = 5, c.qk_norm = false, c.features = "elu1";
  return c;
}

// Grey images, ten classes, two pixels a patch.
ClassifierConfig small_vit(std::int64_t side, std::int64_t dim, std::int64_t depth) {
  ClassifierConfig c = deit(dim, 3);
  c.image = {side, side}, c.channels = 1, c.classes = 10, c.patch = 2, c.depths = {depth};
  c.cpe = 0;  // attention is all that mixes tokens
  c.drop_path = 0.0;
  return c;
}

struct Named {
  std::string_view name;
  ClassifierConfig config;
};

const std::vector<Named>& named() {
  static const std::vector<Named> kNamed = {
      {"deit_tiny", deit(192, 3)},
      {"deit_small", deit(384, 6)},
      {"deit_base", deit(768, 12)},
      {"vlt_tiny", vlt({64, 128, 256, 512}, {2, 2, 6, 2}, {1, 2, 4, 8}, 0.1)},
      {"vlt_small", vlt({64, 128, 320, 512}, {3, 5, 9, 3}, {1, 2, 5, 8}, 0.15)},
      {"vit_demo", small_vit(28, 96, 3)},
      {"vit_256", small_vit(32, 192, 6)},
  };
  return kNamed;
}

template <class Names>
void expect_one_of(const char* field, const std::string& value, const Names& names) {
  std::string all;
  for (const auto& name : names) {
    if (name == value) return;
    all += str(all.empty() ? "" : ", ", name);
  }
  fail("config: ", field, " is '", value, "', expected one of ", all);
}

void within(const char* field, std::int64_t value, const Limit& limit) { expect_within("config", field, value, limit); }

void expect_share(const char* field, double value) {
  if (!(value >= 0.0 && value < 1.0)) fail("config: ", field, " is ", value, ", expected 0 or more and less than 1");
}

void expect_kernel(const char* field, std::int64_t value) {
  within(field, value, limits::kTaps);
  if (value != 0 && value % 2 == 0) fail("config: ", field, " is ", value, ", expected 0 or an odd number");
}

void check_mixing(const ClassifierConfig& c) {
  parse_features(c.features);
  expect_one_of("normalizer", c.normalizer, std::vector<std::string>{"paper", "none"});
  parse_mix_transform(c.mix_init);
  if (!(c.mix_sigma > 0.0)) fail("config: mix_sigma is ", c.mix_sigma, ", expected a positive number");
  if (!(c.mix_range[0] < c.mix_range[1]))
    fail("config: mix_range is [", c.mix_range[0], ", ", c.mix_range[1], "], expected the lower end first");
}

}  // namespace

std::vector<std::string> classifier_names() {
  std::vector<std::string> names;
  for (const Named& entry : named()) names.emplace_back(entry.name);
  return names;
}

ClassifierConfig classifier_config(std::string_view name, std::string_view attention, bool official) {
  const auto found =
      std::find_if(named().begin(), named().end(), [&](const Named& entry) { return entry.name == name; });
  if (found == named().end()) expect_one_of("model", std::string(name), classifier_names());
  ClassifierConfig c = found->config;
  c.model = name, c.attention = attention, c.official = official;
  if (official && c.family == "deit") {
    c.cpe = 0;
    if (attention == "mhla") {
      c.lepe = 5;
      const std::int64_t side = c.patch * 16;  // 16 x 16 tokens
      c.pad = {side, side};
    }
  }
  check(c);
  return c;
}

void check(const ClassifierConfig& c) {
  expect_one_of("family", c.family, std::vector<std::string>{"deit", "vlt"});
  expect_one_of("attention", c.attention, attention_names());
  const bool is_vlt = c.family == "vlt";
  if (c.official && (is_vlt || (c.attention != "mhla" && c.attention != "linear")))
    fail("config: official is true for ", c.family, " with ", c.attention,
         ", expected deit with mhla or linear: no other code was published");
  within("channels", c.channels, limits::kChannels), within("classes", c.classes, limits::kClasses);
  within("patch", c.patch, limits::kPatch);
  const std::size_t stages = is_vlt ? 4 : 1, mixed = is_vlt ? 2 : 1;
  const auto expect_stages = [&](const char* field, const auto& list, std::size_t count) {
    if (list.size() != count)
      fail("config: ", field, " has ", list.size(), " stages, expected ", count, " for ", c.family);
  };
  expect_stages("dims", c.dims, stages), expect_stages("depths", c.depths, stages);
  expect_stages("heads", c.heads, stages), expect_stages("blocks", c.blocks, mixed);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    within("dims", c.dims[stage], limits::kDim), within("depths", c.depths[stage], limits::kLayers);
    within("heads", c.heads[stage], limits::kHeads);
    if (c.dims[stage] % c.heads[stage] != 0)
      fail("config: dims is ", c.dims[stage], ", expected a multiple of heads = ", c.heads[stage]);
  }
  for (const auto& count : c.blocks)
    for (const std::int64_t side : count) within("blocks", side, limits::kBlocks);
  for (std::size_t axis = 0; axis < 2; ++axis) {
    within("image", c.image[axis], limits::kImage);
    expect_within("config", "pad", c.pad[axis], limits::kImage, 0);
    const std::int64_t pixels = c.pad[axis] != 0 ? c.pad[axis] : c.image[axis];
    if (!is_vlt && pixels % c.patch != 0)
      fail("config: image has ", pixels, axis == 0 ? " rows" : " columns", ", expected a multiple of patch = ", c.patch,
           " (pad adds zeros)");
    if (is_vlt && c.image[axis] < 32) fail("config: image is ", c.image[axis], ", expected at least 32 for vlt");
  }
  if (!(c.mlp_ratio > 0.0)) fail("config: mlp_ratio is ", c.mlp_ratio, ", expected a positive number");
  for (const std::int64_t dim : c.dims)
    if (const double width = c.mlp_ratio * static_cast<double>(dim); !(width <= static_cast<double>(limits::kMlp.most)))
      fail("config: mlp_ratio is ", c.mlp_ratio, ", which gives an MLP of ", width, " channels, expected at most ",
           limits::kMlp.most);
  expect_kernel("cpe", c.cpe), expect_kernel("lepe", c.lepe);
  check_mixing(c);
  expect_one_of("pos_init", c.pos_init, std::vector<std::string>{"normal", "sincos"});
  if (c.pos_init == "sincos" && (is_vlt || c.dims[0] % 4 != 0))
    fail("config: pos_init is sincos for ", c.family, " of ", c.dims[0],
         " channels, expected deit and a multiple of 4");
  if (!(c.init_std > 0.0)) fail("config: init_std is ", c.init_std, ", expected a positive number");
  expect_share("drop_path", c.drop_path), expect_share("dropout", c.dropout);
}

ClassifierConfig parse_classifier_config(const JsonValue& given, const std::string& label) {
  const JsonValue object = without_transformers(given, label);
  ClassifierConfig start;
  if (const JsonValue* name = object.find("model"); name != nullptr) {
    const JsonValue* attention = object.find("attention");
    const JsonValue* official = object.find("official");
    try {
      start = classifier_config(name->as_string(), attention == nullptr ? "mhla" : attention->as_string(),
                                official != nullptr && official->as_bool());
    } catch (const Error& error) {
      fail(label, ": ", error.what());
    }
  }
  fields_from_json(start, object, label);
  try {
    check(start);
  } catch (const Error& error) {
    fail(label, ": ", error.what());
  }
  return start;
}

ClassifierConfig read_classifier_config(const std::filesystem::path& path) {
  return parse_classifier_config(read_json_object(path), path.string());
}

}  // namespace mhla
