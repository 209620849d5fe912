// config.json of diffusers' DiTTransformer2DModel, read and written. Older files call it Transformer2DModel.
#include "mhla/core/labelled.h"
#include "mhla/models/dit/dit_config.h"

namespace mhla {
namespace {

// The fields that matter, by the names of diffusers.
struct DiffusersDit {
  std::int64_t num_attention_heads = 16, attention_head_dim = 72, in_channels = 4, num_layers = 28, sample_size = 32,
               patch_size = 2;
  std::optional<std::int64_t> out_channels, num_embeds_ada_norm = 1000;
  std::string activation_fn = "gelu-approximate", norm_type = "ada_norm_zero";
  bool attention_bias = true, norm_elementwise_affine = false;
  double norm_eps = 1e-5;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("num_attention_heads", c.num_attention_heads, "attention heads");
    visit("attention_head_dim", c.attention_head_dim, "channels of a head");
    visit("in_channels", c.in_channels, "channels of a sample");
    visit("out_channels", c.out_channels, "channels of the result");
    visit("num_layers", c.num_layers, "blocks");
    visit("sample_size", c.sample_size, "rows and columns of a sample");
    visit("patch_size", c.patch_size, "side of a patch");
    visit("num_embeds_ada_norm", c.num_embeds_ada_norm, "classes");
    visit("activation_fn", c.activation_fn, "of the MLP");
    visit("norm_type", c.norm_type, "of the blocks");
    visit("attention_bias", c.attention_bias, "whether q, k and v have biases");
    visit("norm_elementwise_affine", c.norm_elementwise_affine, "whether norms have weights");
    visit("norm_eps", c.norm_eps, "epsilon of the norm before the MLP");
  }
};

constexpr const char* kDitClass = "DiTTransformer2DModel";

// The published model of these sizes, which a config.json of ours starts from.
std::string nearest_model(const DitConfig& c) {
  for (const std::string& name : dit_names()) {
    const DitConfig one = dit_config(name, "softmax");
    if (one.dim == c.dim && one.depth == c.depth && one.patch == c.patch && one.family == c.family) return name;
  }
  return "dit_xl_2";
}

}  // namespace

bool is_dit_diffusers(const JsonValue& object) {
  const JsonValue *name = object.find("_class_name"), *norm = object.find("norm_type");
  if (name == nullptr || !name->is_string()) return false;
  const bool older = name->as_string() == "Transformer2DModel" && norm != nullptr && norm->is_string() &&
                     norm->as_string() == "ada_norm_zero";
  return older || name->as_string() == kDitClass;
}

DitConfig parse_dit_diffusers(const JsonValue& object, const std::string& label) {
  DiffusersDit theirs;
  JsonValue known = JsonValue::object();
  for (const std::string& name : field_names<DiffusersDit>())
    if (const JsonValue* value = object.find(name)) known.set(name, *value);
  fields_from_json(theirs, known, label);
  return labelled(label, [&] {
    if (theirs.activation_fn != "gelu-approximate")
      fail("activation_fn is '", theirs.activation_fn, "', expected gelu-approximate");
    if (theirs.norm_type != "ada_norm_zero") fail("norm_type is '", theirs.norm_type, "', expected ada_norm_zero");
    if (!theirs.attention_bias) fail("attention_bias is false, expected true");
    if (theirs.norm_elementwise_affine) fail("norm_elementwise_affine is true, expected false");
    const std::int64_t out = theirs.out_channels.value_or(theirs.in_channels);
    if (out != theirs.in_channels && out != 2 * theirs.in_channels)
      fail("out_channels is ", out, ", expected ", theirs.in_channels, " or ", 2 * theirs.in_channels);
    DitConfig c = dit_config("dit_xl_2", "softmax");
    c.heads = theirs.num_attention_heads, c.dim = theirs.num_attention_heads * theirs.attention_head_dim;
    c.depth = theirs.num_layers, c.patch = theirs.patch_size, c.channels = theirs.in_channels;
    c.image = {theirs.sample_size, theirs.sample_size}, c.classes = theirs.num_embeds_ada_norm.value_or(1000);
    c.learn_sigma = out == 2 * theirs.in_channels, c.norm2_eps = theirs.norm_eps;
    c.freq_shift = 1;
    c.model = nearest_model(c);
    check(c);
    return c;
  });
}

JsonValue dit_diffusers_json(const DitConfig& c) {
  if (c.image[0] != c.image[1])
    fail("names of diffusers: samples are ", c.image[0], " x ", c.image[1], ", expected a square");
  DiffusersDit theirs;
  theirs.num_attention_heads = c.heads, theirs.attention_head_dim = c.dim / c.heads, theirs.num_layers = c.depth;
  theirs.in_channels = c.channels, theirs.out_channels = c.out_channels(), theirs.patch_size = c.patch;
  theirs.sample_size = c.image[0], theirs.num_embeds_ada_norm = c.classes, theirs.norm_eps = c.norm2_eps;
  JsonValue object = JsonValue().set("_class_name", kDitClass);
  const JsonValue fields = fields_to_json(theirs);
  for (const JsonValue::Member& member : fields.members()) object.set(member.key, member.value);
  return object;
}

}  // namespace mhla
