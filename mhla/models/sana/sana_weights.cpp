// The weights of a SANA: names, folders, and another attention for the same weights.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/published_names.h"
#include "mhla/models/sana/sana.h"
#include "mhla/models/weights_folder.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kSanaWeightsEntry = "load_published";
const std::string kCaption = "y_embedder.y_embedding";

// What follows "blocks.N.", whose head becomes `blocks`; "" where it is none.
std::string take_block(std::string& name, const std::string& blocks) {
  const std::string ours = "blocks.";
  if (!starts_with(name, ours)) return {};
  const std::size_t dot = name.find('.', ours.size());
  const std::string rest = name.substr(dot + 1);
  name = blocks + name.substr(ours.size(), dot + 1 - ours.size());
  return rest;
}

PublishedName original_name(const std::string& ours) {
  std::string head = ours, rest = take_block(head, "blocks.");
  if (rest.empty()) return {{ours}, {ours}, 0};
  if (rest == "attn.mix") return {{ours}, {head + "attn.piece_attn.conv.weight"}, 2};
  rest = replaced(rest, "mlp.conv_inverted.", "mlp.inverted_conv.conv.");
  rest = replaced(rest, "mlp.conv_depth.", "mlp.depth_conv.conv.");
  return {{ours}, {head + replaced(rest, "mlp.conv_point.", "mlp.point_conv.conv.")}, 0};
}

PublishedName diffusers_name(const std::string& ours) {
  std::string head = ours, rest = take_block(head, "transformer_blocks.");
  if (rest.empty()) {
    for (const auto& [own, other] :
         {std::pair("x_embedder.", "patch_embed."),
          std::pair("t_embedder.mlp.0.", "time_embed.emb.timestep_embedder.linear_1."),
          std::pair("t_embedder.mlp.2.", "time_embed.emb.timestep_embedder.linear_2."),
          std::pair("t_block.1.", "time_embed.linear."),
          std::pair("y_embedder.y_proj.fc1.", "caption_projection.linear_1."),
          std::pair("y_embedder.y_proj.fc2.", "caption_projection.linear_2."),
          std::pair("attention_y_norm.", "caption_norm."), std::pair("final_layer.linear.", "proj_out."),
          std::pair("final_layer.scale_shift_table", "scale_shift_table")})
      if (replace_head(head, own, other)) break;
    return {{ours}, {head}, 0};
  }
  if (rest == "attn.mix") return {{ours}, {head + "attn1.piece_attn.conv.weight"}, 2};
  if (rest == "attn.qkv.weight")
    return {{ours}, {head + "attn1.to_q.weight", head + "attn1.to_k.weight", head + "attn1.to_v.weight"}, 0};
  if (std::string part = rest; replace_head(part, "cross_attn.kv_linear.", ""))
    return {{ours}, {head + "attn2.to_k." + part, head + "attn2.to_v." + part}, 0};
  for (const auto& [own, other] :
       {std::pair("attn.proj.", "attn1.to_out.0."), std::pair("attn.q_norm.", "attn1.norm_q."),
        std::pair("attn.k_norm.", "attn1.norm_k."), std::pair("cross_attn.q_linear.", "attn2.to_q."),
        std::pair("cross_attn.proj.", "attn2.to_out.0."), std::pair("cross_attn.q_norm.", "attn2.norm_q."),
        std::pair("cross_attn.k_norm.", "attn2.norm_k."), std::pair("mlp.", "ff.")})
    if (replace_head(rest, own, other)) break;
  return {{ours}, {head + rest}, 0};
}

PublishedNames names_of(const Weights& ours, SanaNames names) {
  PublishedNames list;
  for (const auto& [name, value] : ours) {
    if (names == SanaNames::kOriginal)
      list.push_back(original_name(name));
    else if (name != kCaption)
      list.push_back(diffusers_name(name));
  }
  return list;
}

torch::Tensor resampled(const torch::Tensor& mix, const SanaConfig& from, const SanaConfig& to) {
  const BlockGrid source = BlockGrid::grid2d(from.blocks[0], from.blocks[1]),
                  target = BlockGrid::grid2d(to.blocks[0], to.blocks[1]);
  const torch::Tensor given = mix.detach().cpu().to(torch::kFloat).contiguous(),
                      out = torch::empty({target.count(), target.count()});
  resample_mix(ops::view_of(given, "with_attention", "mix"), source, ops::output_view(out, "with_attention", "mix"),
               target);
  return out;
}

}  // namespace

Weights state_of(const SanaImpl& model) {
  Weights state = weights_of(model);
  state[kCaption] = model.y_embedding;
  return state;
}

Weights to_published(const SanaConfig& /*config*/, const Weights& ours, SanaNames names) {
  return to_published(names_of(ours, names), ours);
}

void load_published(SanaImpl& model, const Weights& published) {
  Weights own = state_of(model), file = published;
  file.erase("pos_embed");  // of position tables that SANA does not use
  if (file.count(kCaption) == 0) own.erase(kCaption);
  const std::vector<PublishedNames> lists{names_of(own, SanaNames::kOriginal), names_of(own, SanaNames::kDiffusers),
                                          renamed(own, [](const std::string& name) { return name; })};
  copy_weights(own, from_published(nearest_names(lists, file), own, file, kSanaWeightsEntry), kSanaWeightsEntry);
}

Sana with_attention(const SanaImpl& model, const SanaConfig& config) {
  const SanaConfig& from = model.config();
  SanaConfig same = config;
  same.attention = from.attention, same.eps = from.eps, same.features = from.features, same.blocks = from.blocks;
  same.mix_init = from.mix_init, same.mix_sigma = from.mix_sigma, same.mix_range = from.mix_range;
  same.learn_mix = from.learn_mix, same.model = from.model;
  if (same != from) fail("with_attention: config differs from the model's in more than its attention");
  Sana other(config);
  Weights state = state_of(model);
  for (const auto& [name, value] : state_of(*other)) {
    if (name.find(".attn.mix") == std::string::npos) continue;
    const auto found = state.find(name);
    state[name] = found == state.end() ? value : resampled(found->second, from, config);
  }
  if (config.attention != "mhla")
    for (auto it = state.begin(); it != state.end();)
      it = it->first.find(".attn.mix") != std::string::npos ? state.erase(it) : std::next(it);
  const torch::Tensor like = model.parameters()[0];
  other->to(like.device(), like.scalar_type());
  copy_weights(state_of(*other), state, "with_attention");
  other->train(model.is_training());
  return other;
}

Sana load_sana(const std::filesystem::path& folder, torch::ScalarType dtype) {
  Sana model(read_sana_config(folder / "config.json"));
  model->to(dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_sana(const SanaImpl& model, const std::filesystem::path& folder, SanaNames names, double shard_bytes) {
  OutputFolder place(folder);
  const bool diffusers = names == SanaNames::kDiffusers;
  write_weights_folder(place, diffusers ? "diffusion_pytorch_model" : "model",
                       to_published(model.config(), state_of(model), names), shard_bytes);
  const bool theirs = diffusers && model.config().attention == "linear";  // which has no other
  const JsonValue config = theirs ? sana_diffusers_json(model.config()) : fields_to_json(model.config());
  write_file(place.claim("config.json"), write_json(config, 2) + "\n");
  place.keep();
}

}  // namespace mhla
