#include "mhla/models/wan/wan_recorded.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/models/wan/wan.h"

namespace mhla {
namespace {

// The keys that say what ran, not what the model is.
const std::vector<std::string> kRunKeys{"family", "names", "time", "text_lens", "mhla", "param_case", "seq_len"};

WanConfig wan_config_of(const RecordedCase& c) {
  const bool diffusers = c.text("names") == "diffusers";
  if (!diffusers) c.expect_text("names", "original");
  JsonValue published = JsonValue::object();
  published.set("_class_name", diffusers ? "WanTransformer3DModel" : "WanModel");
  for (const JsonValue::Member& m : c.config.members()) {
    if (std::find(kRunKeys.begin(), kRunKeys.end(), m.key) == kRunKeys.end()) published.set(m.key, m.value);
  }
  WanConfig config = parse_wan_config(published, "metadata");
  const JsonValue* mhla = c.config.find("mhla");
  if (mhla == nullptr) return config;
  config.attention = "mhla", config.official = true;
  for (const JsonValue::Member& m : mhla->members()) {
    if (m.key == "layers")
      fields::from_json(m.value, config.layers);
    else if (m.key == "block_layout")
      fields::from_json(m.value, config.blocks);
    else if (m.key == "transform")
      config.mix_init = m.value.as_string();
    else if (m.key == "is_gated")
      config.gate = m.value.as_bool() ? "silu" : "none";
    else if (m.key == "is_lepe")
      config.lepe = m.value.as_bool() ? 3 : 0;
    else if (m.key == "normalize_out")
      config.normalizer = m.value.as_bool() ? "official" : "none";
    else if (m.key == "normalizer")
      config.normalizer = m.value.as_string();
    else if (m.key == "head_norm")
      config.head_norm = m.value.as_bool();
    else if (m.key == "official")
      config.official = m.value.as_bool();
    else
      fail("metadata 'mhla' has '", m.key, "', which is no option of this family");
  }
  check(config);
  return config;
}

torch::Tensor times_of(const RecordedCase& c) {
  if (!c.config.contains("time")) fail("metadata 'time' is missing");
  std::vector<double> times;
  labelled("metadata 'time'", [&] { fields::from_json(c.config.at("time"), times); });
  return torch::tensor(times, torch::kDouble);
}

// Rows count up to their length, then zeros.
torch::Tensor cut_text(const RecordedCase& c, const torch::Tensor& text) {
  if (!c.config.contains("text_lens")) return text;
  std::vector<std::int64_t> lengths;
  labelled("metadata 'text_lens'", [&] { fields::from_json(c.config.at("text_lens"), lengths); });
  if (static_cast<std::int64_t>(lengths.size()) != text.size(0))
    fail("metadata 'text_lens' has ", lengths.size(), " numbers, expected ", text.size(0));
  const torch::Tensor places = torch::arange(text.size(1)).unsqueeze(0);
  const torch::Tensor there = places < torch::tensor(lengths, torch::kLong).unsqueeze(1);
  return text * there.unsqueeze(-1).to(text.device(), text.scalar_type());
}

Weights wan_transformer(const RecordedCase& c) {
  const WanConfig config = wan_config_of(c);
  const WanNames names = c.text("names") == "diffusers" ? WanNames::kDiffusers : WanNames::kOriginal;
  Wan model(config);
  const torch::Tensor text = c.leaf("in.text"), t = times_of(c);
  model->to(text.device(), text.scalar_type());
  load_published(*model, c.weights("param."));
  Weights results;
  if (c.has("in.x0")) {  // videos of different grids
    std::vector<torch::Tensor> videos;
    for (std::size_t i = 0; c.has("in.x" + std::to_string(i)); ++i)
      videos.push_back(c.tensor("in.x" + std::to_string(i)));
    const torch::NoGradGuard no_gradient;
    const std::vector<torch::Tensor> out = model.ptr()->forward(videos, t, cut_text(c, text));
    for (std::size_t i = 0; i < out.size(); ++i) results["out.y" + std::to_string(i)] = out[i];
    return results;
  }
  const torch::Tensor x = c.leaf("in.x");
  const torch::Tensor out = model.ptr()->denoise(x, t, {{}, cut_text(c, text), {}});
  results["out"] = out;
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.x"] = x.grad(), results["grad.in.text"] = text.grad();
  for (const auto& [name, value] : to_published(config, gradients_of(*model), names))
    results["grad.param." + name] = value;
  return results;
}

// Positions of frame, row and column: [1, N, H, d].
Weights rope3d(const RecordedCase& c) {
  c.expect_keys({"head_dim", "grid", "split", "theta", "note"});
  VideoGrid grid{};
  if (!c.config.contains("grid")) fail("metadata 'grid' is missing");
  labelled("metadata 'grid'", [&] { fields::from_json(c.config.at("grid"), grid); });
  if (c.number("theta", 10000.0) != 10000.0) fail("metadata 'theta' is ", c.number("theta", 0), ", expected 10000");
  VideoRopes ropes(c.integer("head_dim"));
  const torch::Tensor x = c.leaf("in.x");
  const RopeTable table = ropes.at(grid, x);
  const torch::Tensor out = ops::rope(x, x, table).first;
  Weights results{{"out", out}, {"out.cos", table.cos}, {"out.sin", table.sin}};
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.x"] = x.grad();
  return results;
}

Weights time_embedding(const RecordedCase& c) {
  c.expect_keys({"freq_dim", "order", "note"});
  c.expect_text("order", "cos then sin");
  const torch::Tensor& t = c.tensor("in.time");
  return {{"out", wan_time_features(t, c.integer("freq_dim"), /*wide=*/true)},
          {"out.diffusers", wan_time_features(t, c.integer("freq_dim"), /*wide=*/false)}};
}

}  // namespace

RecordedFamilies wan_recorded() {
  return {{"wan_transformer", wan_transformer}, {"rope3d", rope3d}, {"time_embedding", time_embedding}};
}

}  // namespace mhla
