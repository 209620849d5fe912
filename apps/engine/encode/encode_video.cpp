#include "apps/engine/encode/encode_video.h"

#include "apps/engine/sample_video/video_plan.h"
#include "mhla/core/error.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/language/caption_tokens.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kUmt5Tokens = 512;  // that Wan2.1 reads

std::array<std::int64_t, 2> size_in(const EncodeRequest& r) {
  return r.size.value_or(std::array<std::int64_t, 2>{480, 832});
}

WanVaeConfig vae_config_of(const EncodeRequest& r) {
  const fs::path file = fs::path(r.vae) / "config.json";
  return parse_wan_vae_config(read_json_object(file), file.string());
}

std::string nearest(std::int64_t value, std::int64_t step, std::int64_t rest) {
  const std::int64_t below = std::max<std::int64_t>(0, (value - rest) / step) * step + rest;
  return below >= std::max<std::int64_t>(1, rest) ? str(below, " or ", below + step) : str(below + step);
}

}  // namespace

bool has_wan_vae(const EncodeRequest& r) {
  const fs::path file = fs::path(r.vae) / "config.json";
  if (r.vae.empty() || !is_there(file)) return false;
  const JsonValue config = read_json_object(file);
  const JsonValue* name = config.find("_class_name");
  return (name != nullptr && name->is_string() && name->as_string() == "AutoencoderKLWan") ||
         config.find("temperal_downsample") != nullptr;
}

EncodeItems video_items(const EncodeRequest& r) {
  const auto refuse = [](bool given, const char* option) {
    if (given) fail(kEncodeCommand, ": ", option, " is given, but --vae is of videos");
  };
  refuse(r.image != 0, "--image"), refuse(r.flip, "--flip"), refuse(!r.captions.empty(), "--captions");
  if (r.text_encoder.empty())
    fail(kEncodeCommand, ": --text-encoder is missing, expected umT5: `mhla train video` takes latents with captions");
  const WanVaeConfig vae = vae_config_of(r);
  const std::int64_t each = vae.time_factor(), side = vae.space_factor();
  if (r.frames < 1 || (r.frames - 1) % each != 0)
    fail(kEncodeCommand, ": --frames is ", r.frames, ", expected one and a multiple of ", each, ": ",
         nearest(r.frames, each, 1));
  const std::array<std::int64_t, 2> size = size_in(r);
  for (const std::int64_t pixels : size)
    if (pixels < side || pixels % side != 0)
      fail(kEncodeCommand, ": --size is ", size[0], "x", size[1], ", expected multiples of ", side, ": ",
           nearest(pixels, side, 0), " instead of ", pixels);
  EncodeItems items;
  items.source = r.data;
  items.videos =
      open_videos(r.data, r.split == "test" ? Split::kTest : Split::kTrain, {r.frames, size[0], size[1], r.fps});
  if (r.split == "test") items.source += ", test";
  if (items.videos->is_made())
    fail(kEncodeCommand, ": --data is ", r.data, ", whose clips are made without end, expected a folder of videos");
  for (std::int64_t i = 0; i < items.videos->size(); ++i) items.captions.push_back(items.videos->caption(i));
  return items;
}

VideoEncoders::VideoEncoders(const EncodeRequest& r, const EncodeItems& items)
    : request_(r),
      items_(items),
      vae_config_(vae_config_of(r)),
      encoder_config_(read_umt5_config(fs::path(r.text_encoder) / "config.json")),
      tokens_(r.caption_tokens > 0 ? r.caption_tokens : kUmt5Tokens) {
  const fs::path file = umt5_tokenizer(fs::path(r.text_encoder) / "", r.text_encoder);
  if (file.empty())
    fail(kEncodeCommand, ": no spiece.model is in ", r.text_encoder, " or in tokenizer/ beside it, expected umT5's");
  tokenizer_ = open_tokenizer(file.string());
  if (tokenizer_->vocab_size() > encoder_config_.vocab_size)
    fail(kEncodeCommand, ": ", file.string(), " has ", tokenizer_->vocab_size(), " tokens, expected at most the ",
         encoder_config_.vocab_size, " of the text encoder");
  for (std::int64_t i = 0; i < items.count(); ++i)
    labelled(items.videos->item_name(i), [&] { (void)ids_of(items.captions[static_cast<std::size_t>(i)]); });
}

std::vector<std::int64_t> VideoEncoders::ids_of(const std::string& caption) const {
  std::vector<std::int64_t> ids = umt5_caption(*tokenizer_, caption);
  if (static_cast<std::int64_t>(ids.size()) > tokens_)
    fail("the caption has ", ids.size(), " tokens, expected at most ", tokens_);
  return ids;
}

void VideoEncoders::describe(LatentSetConfig& c) const {
  const auto& [frames, rows, columns, fps] = items_.videos->shape();
  const std::int64_t side = vae_config_.space_factor();
  c.image = {frames, rows, columns};
  c.shape = {vae_config_.z_dim, 1 + (frames - 1) / vae_config_.time_factor(), rows / side, columns / side};
  c.posterior = "mean";
  c.captions = {tokens_, encoder_config_.d_model};
}

void VideoEncoders::add_memory(MemoryEstimate& network, bool cuda) const {
  const ModelSize vae = size_of(vae_config_, size_in(request_)[0], size_in(request_)[1]);
  network.add("autoencoder", 4 * vae.parameters).add("its activations", 4 * vae.passing);
  const ModelSize text = size_of(encoder_config_, tokens_);
  network.add("text encoder", 2 * text.parameters).add("its activations", (cuda ? 2 : 4) * text.passing);
}

torch::Tensor VideoEncoders::latents(std::int64_t first, std::int64_t count, torch::Device device) {
  const torch::NoGradGuard no_gradient;
  if (vae_.is_empty()) {
    vae_ = load_wan_vae(request_.vae);
    vae_->to(device);
    vae_->eval();
  }
  const ClipShape& shape = items_.videos->shape();
  std::vector<torch::Tensor> all;
  for (std::int64_t i = 0; i < count; ++i) {  // one at a time: its latents do not depend on the others
    const torch::Tensor clip = torch::empty({1, 3, shape.frames, shape.rows, shape.columns});
    items_.videos->clip(first + i, clip.data_ptr<float>());
    all.push_back(vae_->encode(clip.to(device)).to(torch::kFloat).cpu());
  }
  return torch::cat(all);
}

Conditioning VideoEncoders::captions(const std::vector<std::string>& texts, torch::Device device) {
  const torch::NoGradGuard no_gradient;
  if (encoder_.is_empty()) {
    encoder_ = load_umt5(request_.text_encoder);
    encoder_->to(device);
    encoder_->eval();
  }
  std::vector<torch::Tensor> states, masks;
  for (const std::string& text : texts) {
    const torch::Tensor row = torch::tensor(ids_of(text), torch::kLong).unsqueeze(0);
    const std::int64_t rest = tokens_ - row.size(1);
    states.push_back(
        torch::constant_pad_nd(encoder_->forward(row.to(device)).to(torch::kFloat).cpu(), {0, 0, 0, rest}));
    masks.push_back(torch::constant_pad_nd(torch::ones_like(row), {0, rest}));
  }
  return {{}, torch::cat(states), torch::cat(masks)};
}

}  // namespace mhla::apps
