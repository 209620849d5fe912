#include "apps/engine/clip_judge.h"

#include <algorithm>

#include "apps/engine/image_source.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/data/resample.h"
#include "mhla/io/folder.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/models/clip/clip.h"
#include "mhla/train/opening.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

// As CLIP's own preprocessing: the shorter side to `side` with PIL's bicubic filter, then the middle.
void to_square(const Image& image, int side, Image& out, ItemScratch& scratch) {
  const int shorter = std::min(image.height, image.width);
  const auto scaled = [&](int length) {
    return length == shorter ? side : static_cast<int>(static_cast<std::int64_t>(length) * side / shorter);
  };
  const int height = scaled(image.height), width = scaled(image.width);
  resize_image(image, {0, 0, image.height, image.width}, height, width, Interpolation::kBicubic, scratch.other,
               scratch.resample);
  // torchvision rounds half to even
  const auto middle = [&](int length) { return static_cast<int>(std::nearbyint((length - side) / 2.0)); };
  crop_image(scratch.other, {middle(height), middle(width), side, side}, out);
}

class ClipJudge : public ImageJudge {
 public:
  ClipJudge(const fs::path& folder, const std::string& device)
      : device_(train::device_of(device)), model_(load_clip(folder)) {
    model_->to(device_);
    model_->eval();
    const fs::path file = folder / "tokenizer.json";
    if (is_there(file)) tokenizer_ = open_tokenizer(file.string());
    folder_ = folder.string();
  }
  [[nodiscard]] std::int64_t features(const torch::Tensor&) const override { return model_->config().projection; }
  [[nodiscard]] std::int64_t classes() const override { return 0; }
  JudgedBatch judge(const torch::Tensor& images) override {
    const auto side = static_cast<int>(model_->config().image);
    const std::int64_t count = images.size(0);
    const torch::Tensor pixels = images.permute({0, 2, 3, 1}).contiguous();
    const torch::Tensor squares = torch::empty({count, side, side, 3}, torch::kByte);
    default_executor()->run(count, [&](std::int64_t i, int) {
      ItemScratch scratch;
      Image square;
      scratch.image.resize(static_cast<int>(images.size(2)), static_cast<int>(images.size(3)), 3);
      const auto bytes = static_cast<std::int64_t>(scratch.image.pixels.size());
      std::copy_n(pixels.data_ptr<std::uint8_t>() + i * bytes, bytes, scratch.image.pixels.begin());
      to_square(scratch.image, side, square, scratch);
      std::copy(square.pixels.begin(), square.pixels.end(), squares.data_ptr<std::uint8_t>() + squares.stride(0) * i);
    });
    const torch::Tensor ready = clip_pixels(squares.permute({0, 3, 1, 2}).contiguous().to(device_));
    return {model_->embed_images(ready).to(torch::kFloat).cpu().contiguous(), {}, {}};
  }

  // The start token, the prompt, the end token; what is too long is cut.
  torch::Tensor embed_prompts(const std::vector<std::string>& prompts) override {
    if (!tokenizer_) fail(kEvalImagesCommand, ": ", folder_, " has no tokenizer.json, expected CLIP's for the prompts");
    const std::vector<std::uint32_t>&start = tokenizer_->opening(), &end = tokenizer_->closing();
    if (start.size() != 1 || end.size() != 1)
      fail(kEvalImagesCommand, ": the tokenizer of ", folder_, " has ", start.size(), " tokens before a text and ",
           end.size(), " after it, expected 1 and 1");
    const std::int64_t vocab = model_->config().vocab;
    const auto most = static_cast<std::size_t>(model_->config().context - 2);
    std::vector<torch::Tensor> rows;
    for (const std::string& prompt : prompts) {
      std::vector<std::int64_t> ids{start[0]};
      for (const std::uint32_t id : tokenizer_->encode(prompt)) ids.push_back(id);
      if (ids.size() > most + 1) ids.resize(most + 1);
      ids.push_back(end[0]);
      if (*std::max_element(ids.begin(), ids.end()) >= vocab)
        fail(kEvalImagesCommand, ": the tokenizer of ", folder_, " has ids up to ", tokenizer_->vocab_size() - 1,
             ", expected less than the ", vocab, " of the model");
      rows.push_back(model_->embed_texts(torch::tensor(ids, torch::kLong).unsqueeze(0).to(device_)).cpu());
    }
    return torch::cat(rows).to(torch::kFloat);
  }

 private:
  torch::Device device_;
  Clip model_;
  TokenizerPtr tokenizer_;
  std::string folder_;
};

}  // namespace

std::unique_ptr<ImageJudge> open_clip_judge(const std::string& folder, const std::string& device) {
  return std::make_unique<ClipJudge>(folder, device);
}

}  // namespace mhla::apps
