#include "mhla/analysis/networks/model_attention.h"

#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/scores.h"

namespace mhla {
namespace {

Matrix matrix_of(const torch::Tensor& given) {  // [rows, columns]
  const torch::Tensor t = given.detach().to(torch::kCPU, torch::kDouble).contiguous();
  Matrix m(t.size(0), t.size(1));
  std::copy_n(t.data_ptr<double>(), t.numel(), m.values.begin());
  return m;
}

std::vector<std::int64_t> blocks_of(const Layout& layout, std::int64_t N) {
  const BlockMap map(layout, N);
  std::vector<std::int64_t> block(static_cast<std::size_t>(N));
  for (std::int64_t b = 0; b < map.blocks(); ++b)
    for (std::int64_t run = 0; run < map.runs(b); ++run)
      std::fill_n(block.begin() + map.run_start(b, run), map.run_length(b), b);
  return block;
}

HeadAttention head_of(const AttentionScores& s, std::int64_t sample, std::int64_t h) {
  HeadAttention head;
  const std::int64_t group = s.q.size(2) / s.k.size(2);
  head.softmax = s.softmax, head.scale = s.scale;
  head.q = matrix_of(s.q.select(0, sample).select(1, h));
  head.k = matrix_of(s.k.select(0, sample).select(1, h / group));
  if (s.softmax) return head;
  const torch::Tensor den = s.den.select(0, sample).select(1, s.den.size(2) == 1 ? 0 : h);
  head.den = matrix_of(den.unsqueeze(0)).values;
  if (s.mix.defined() && s.mix.size(-1) > 1) {
    head.mix = matrix_of(s.mix.dim() == 3 ? s.mix.select(0, h) : s.mix);
    head.block_of = blocks_of(s.layout, s.q.size(1));
  } else if (s.mix.defined()) {  // one block: its weight stands above and below, unless nothing is below
    const double weight = (s.mix.dim() == 3 ? s.mix.select(0, h) : s.mix).item<double>();
    for (double& value : head.q.values) value *= weight;
  }
  return head;
}

}  // namespace

std::vector<LayerAttention> attention_of(Classifier& model, const torch::Tensor& images) {
  const torch::NoGradGuard no_gradient;
  const bool was_training = model.is_training();
  model.eval();
  const std::vector<torch::Tensor> inputs = model.attention_inputs(images);
  std::vector<LayerAttention> layers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const AttentionLayer& layer = model.attention_layers()[i];
    LayerAttention seen{layer.name, layer.layout, {}};
    if (auto* scored = dynamic_cast<ScoredAttention*>(layer.attention.get()); scored != nullptr) {
      const AttentionScores scores = scored->scores(inputs[i]);
      for (std::int64_t b = 0; b < images.size(0); ++b) {
        seen.heads.emplace_back();
        for (std::int64_t h = 0; h < scores.q.size(2); ++h) seen.heads.back().push_back(head_of(scores, b, h));
      }
    }
    layers.push_back(std::move(seen));
  }
  model.train(was_training);
  return layers;
}

std::vector<MixState> mix_states(const Classifier& model) {
  const AnyClassifier fresh = make_classifier(model.config());
  std::vector<MixState> states;
  for (std::size_t i = 0; i < model.attention_layers().size(); ++i) {
    const AttentionLayer& layer = model.attention_layers()[i];
    const auto* now = dynamic_cast<const MhlaAttentionImpl*>(layer.attention.get());
    const auto* then = dynamic_cast<const MhlaAttentionImpl*>(fresh->attention_layers()[i].attention.get());
    if (now == nullptr || now->mix.size(-1) < 2) continue;
    if (now->mix.dim() == 2) {
      states.push_back({layer.name, {}, matrix_of(then->mix), matrix_of(now->mix)});
      continue;
    }
    for (std::int64_t h = 0; h < now->mix.size(0); ++h)
      states.push_back({layer.name, h, matrix_of(then->mix.select(0, h)), matrix_of(now->mix.select(0, h))});
  }
  return states;
}

}  // namespace mhla
