// The named models, and what a configuration may not be.
#include "mhla/models/dit/dit_config.h"

#include <algorithm>

#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

DitConfig latent_model(std::int64_t dim, std::int64_t depth, std::int64_t heads, std::int64_t patch) {
  DitConfig c;
  c.dim = dim, c.depth = depth, c.heads = heads, c.patch = patch;
  if (patch == 8) c.blocks = {2, 2};  // 4 x 4 tokens
  return c;
}

// 256 tokens of 2 x 2 pixels. No convolutions: attention is all that mixes tokens.
DitConfig pixel_model(std::int64_t dim, std::int64_t depth, std::int64_t heads) {
  DitConfig c = latent_model(dim, depth, heads, 2);
  c.channels = 3, c.classes = 10;
  return c;
}

struct Named {
  std::string name;
  DitConfig config;
};

std::vector<Named> all_named() {
  std::vector<Named> all;
  for (const std::int64_t patch : {2, 4, 8}) {
    const std::string end = "_" + std::to_string(patch);
    all.push_back({"dit_s" + end, latent_model(384, 12, 6, patch)});
    all.push_back({"dit_b" + end, latent_model(768, 12, 12, patch)});
    all.push_back({"dit_l" + end, latent_model(1024, 24, 16, patch)});
    all.push_back({"dit_xl" + end, latent_model(1152, 28, 16, patch)});
  }
  all.push_back({"dit_d32", pixel_model(128, 8, 2)});
  all.push_back({"dit_t32", pixel_model(192, 8, 3)});
  all.push_back({"dit_s32", pixel_model(256, 10, 4)});
  DitConfig dig = latent_model(384, 12, 6, 2);
  dig.family = "dig", dig.dwconv = 3;
  all.push_back({"dig_s_2", dig});
  return all;
}

const std::vector<Named>& named() {
  static const std::vector<Named> kNamed = all_named();
  return kNamed;
}

template <class Names>
void one_of(const char* field, std::string_view value, const Names& names) {
  std::string all;
  for (const auto& name : names) {
    if (name == value) return;
    all += str(all.empty() ? "" : ", ", name);
  }
  fail("config: ", field, " is '", value, "', expected one of ", all);
}

void kernel(const char* field, std::int64_t value) {
  expect_within("config", field, value, limits::kTaps);
  if (value != 0 && value % 2 == 0) fail("config: ", field, " is ", value, ", expected 0 or an odd number");
}

void positive(const char* field, double value) {
  if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
}

// Options of the attention that others do not have.
void check_attention(const DitConfig& c) {
  const auto only = [&](const char* field, bool set, bool allowed, const char* expected) {
    if (set && !allowed) fail("config: ", field, " is set for ", c.attention, ", expected it for ", expected);
  };
  one_of("gate", c.gate, std::vector<std::string>{"none", "silu", "linear"});
  only("gate", c.gate != "none", c.is_mhla(), "mhla or linear");
  only("head_norm", c.head_norm, c.is_mhla(), "mhla or linear");
  only("qk_norm", c.qk_norm, c.is_mhla(), "mhla or linear");
  only("lepe", c.lepe != 0, c.is_mhla() || c.attention == "softmax", "mhla, linear or softmax");
  only("scan", c.scan, scans(c.attention), "attentions that scan: gla, gdn, mamba, mamba2");
  only("official", c.official, c.attention == "mhla" && c.family == "dit",
       "dit with mhla: no other code was published");
  parse_features(c.features);
  one_of("normalizer", c.normalizer, std::vector<std::string>{"paper", "none"});
  parse_mix_transform(c.mix_init);
  positive("mix_sigma", c.mix_sigma);
  if (!(c.mix_range[0] < c.mix_range[1]))
    fail("config: mix_range is [", c.mix_range[0], ", ", c.mix_range[1], "], expected the lower end first");
  for (const std::int64_t side : c.blocks) expect_within("config", "blocks", side, limits::kBlocks);
  if (!c.official) return;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if ((c.image[axis] / c.patch) % c.blocks[axis] != 0)
      fail("config: blocks is ", c.blocks[axis], " for ", c.image[axis] / c.patch,
           " tokens, expected a divisor: the published code has blocks of one size");
  }
}

}  // namespace

std::vector<std::string> dit_names() {
  std::vector<std::string> names;
  for (const Named& entry : named()) names.push_back(entry.name);
  return names;
}

DitConfig with_variant(DitConfig c, std::string_view variant) {
  one_of("variant", variant, std::vector<std::string>{"none", "cpe", "gate", "both"});
  c.lepe = variant == "cpe" || variant == "both" ? 3 : 0;
  c.gate = variant == "gate" || variant == "both" ? "silu" : "none";
  check(c);
  return c;
}

DitConfig dit_config(std::string_view name, std::string_view attention, bool official) {
  const auto found =
      std::find_if(named().begin(), named().end(), [&](const Named& entry) { return entry.name == name; });
  if (found == named().end()) one_of("model", name, dit_names());
  DitConfig c = found->config;
  const bool latents = c.channels == 4;
  c.model = name, c.attention = attention, c.official = official;
  if (attention == "mhla" && latents && c.family == "dit") c.lepe = 3, c.gate = official ? "none" : "silu";
  if (official && !latents) c.lepe = 3;
  if (c.family == "dig") c.scan = scans(attention);
  check(c);
  return c;
}

DitConfig at_size(DitConfig c, std::int64_t rows, std::int64_t columns) {
  if (c.pos_base[0] == 0) c.pos_base = {c.rows(), c.columns()};
  c.image = {rows, columns};
  check(c);
  if (c.pos_base[0] == c.rows() && c.pos_base[1] == c.columns()) c.pos_base = {0, 0};
  return c;
}

void check(const DitConfig& c) {
  one_of("family", c.family, std::vector<std::string>{"dit", "dig"});
  one_of("attention", c.attention, attention_names());
  expect_within("config", "channels", c.channels, limits::kChannels);
  expect_within("config", "classes", c.classes, limits::kClasses);
  expect_within("config", "patch", c.patch, limits::kPatch);
  expect_within("config", "dim", c.dim, limits::kDim);
  expect_within("config", "depth", c.depth, limits::kLayers);
  expect_within("config", "heads", c.heads, limits::kHeads);
  if (c.dim % c.heads != 0) fail("config: dim is ", c.dim, ", expected a multiple of heads = ", c.heads);
  if (c.dim % 4 != 0) fail("config: dim is ", c.dim, ", expected a multiple of 4 for sines and cosines of two axes");
  for (std::size_t axis = 0; axis < 2; ++axis) {
    expect_within("config", "image", c.image[axis], limits::kImage);
    if (c.image[axis] % c.patch != 0)
      fail("config: image has ", c.image[axis], axis == 0 ? " rows" : " columns",
           ", expected a multiple of patch = ", c.patch);
    expect_within("config", "pos_base", c.pos_base[axis], limits::kImage, 0);
  }
  if ((c.pos_base[0] == 0) != (c.pos_base[1] == 0))
    fail("config: pos_base is ", c.pos_base[0], ", ", c.pos_base[1], ", expected both or none");
  positive("mlp_ratio", c.mlp_ratio), positive("pos_scale", c.pos_scale), positive("norm2_eps", c.norm2_eps);
  if (const double width = c.mlp_ratio * static_cast<double>(c.dim); !(width <= static_cast<double>(limits::kMlp.most)))
    fail("config: mlp_ratio is ", c.mlp_ratio, ", which gives an MLP of ", width, " channels, expected at most ",
         limits::kMlp.most);
  expect_within("config", "mlp_inner", c.mlp_inner, limits::kMlp, 0);
  if (!(c.label_dropout >= 0.0 && c.label_dropout < 1.0))
    fail("config: label_dropout is ", c.label_dropout, ", expected 0 or more and less than 1");
  if (c.freq_shift != 0 && c.freq_shift != 1) fail("config: freq_shift is ", c.freq_shift, ", expected 0 or 1");
  kernel("cpe", c.cpe), kernel("lepe", c.lepe), kernel("dwconv", c.dwconv);
  check_attention(c);
}

DitConfig parse_dit_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    DitConfig start;
    if (const JsonValue* name = object.find("model"); name != nullptr) {
      const JsonValue* attention = object.find("attention");
      const JsonValue* official = object.find("official");
      start = dit_config(name->as_string(), attention == nullptr ? "mhla" : attention->as_string(),
                         official != nullptr && official->as_bool());
    }
    fields_from_json(start, object, "config");
    check(start);
    return start;
  });
}

DitConfig read_dit_config(const std::filesystem::path& path) {
  return parse_dit_config(read_json_object(path), path.string());
}

}  // namespace mhla
