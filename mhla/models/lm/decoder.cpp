#include "mhla/models/lm/decoder.h"

#include <algorithm>
#include <vector>

#include "mhla/modules/mhla_attention.h"
#include "mhla/ops/torch.h"

#ifdef MHLA_TORCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace mhla {

#ifdef MHLA_TORCH_CUDA

namespace {

MhlaAttentionImpl* mhla_of(const LmBlock& block) { return block->attention()->as<MhlaAttentionImpl>(); }

bool can_record(const LanguageModelImpl& model) {
  return model.device().is_cuda() && mhla_of(model.blocks().front()) != nullptr && model.config().short_conv == 0 &&
         !ops::cuda_autocast();
}

}  // namespace

// Part i of a step ends where block i calls the operator, the last one with the logits. A part reads what the one
// before it and the operator left in memory that all parts share, and that nobody else is given.
struct Decoder::Recording {
  Recording(const LanguageModelImpl& model, std::int64_t batch)
      : tokens(torch::empty({batch, 1}, torch::TensorOptions(torch::kLong).device(model.device()))),
        pool(at::cuda::graph_pool_handle()),
        stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, model.device().index())),
        steps(model.blocks().size()),
        sums(model.blocks().size()) {}

  // What a step reads of its sequences, into its place.
  void look_at(const LanguageModelImpl& model, const torch::Tensor& given, const LmState& state) {
    tokens.copy_(given.unsqueeze(1));
    const std::vector<std::int64_t>& positions = state.positions();
    const RopeTable now = mhla_of(model.blocks().front())
                              ->stream_table(next_positions(positions, 1, model.device()),
                                             *std::max_element(positions.begin(), positions.end()) + 1);
    if (!now.cos.defined()) return;
    if (!table.cos.defined()) {
      table = {now.cos.clone(), now.sin.clone(), now.halves};
    } else {
      table.cos.copy_(now.cos), table.sin.copy_(now.sin);
    }
  }

  // Part `part` of a step, which is being recorded.
  void work(LanguageModelImpl& model, std::size_t part) {
    const std::vector<LmBlock>& blocks = model.blocks();
    torch::Tensor x = part == 0 ? model.embed(tokens)
                                : blocks[part - 1].ptr()->behind(
                                      sums[part - 1], mhla_of(blocks[part - 1])->close_step(steps[part - 1]));
    if (part == blocks.size()) {
      logits = model.logits(model.normed(x).select(1, 0));
      return;
    }
    steps[part] = mhla_of(blocks[part])->open_step(blocks[part].ptr()->before(x), table, nullptr);
    sums[part] = x;
  }

  void record(LanguageModelImpl& model, std::size_t part) {
    const c10::cuda::CUDAStreamGuard on_its_stream(stream);
    graphs.push_back(std::make_unique<at::cuda::CUDAGraph>());
    graphs.back()->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work(model, part);
    } catch (...) {
      try {
        graphs.back()->capture_end();  // or the stream would go on recording
      } catch (const std::exception&) {
      }
      throw;
    }
    graphs.back()->capture_end();
  }

  torch::Tensor tokens;  // [B, 1]
  RopeTable table;
  at::cuda::MempoolId_t pool;
  c10::cuda::CUDAStream stream;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs;
  std::vector<MhlaAttentionImpl::StreamStep> steps;
  std::vector<torch::Tensor> sums;  // what the blocks add to, [B, 1, dim]
  torch::Tensor logits;             // [B, vocab]
};

torch::Tensor Decoder::decode(const torch::Tensor& tokens, LmState& state) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t batch = tokens.dim() == 1 ? tokens.size(0) : -1;
  const bool again = batch == last_batch_;
  if (!again || batch < 1 || !can_record(model_)) {  // libraries set themselves up in the step that is not recorded
    recording_.reset();
    last_batch_ = 0;
    const torch::Tensor logits = model_.decode(tokens, state);
    last_batch_ = batch;
    return logits;
  }
  model_.expect_step(tokens.unsqueeze(1), state);
  mhla_of(model_.blocks().front())->expect_room(state.layers.front(), 1);
  const bool first = recording_ == nullptr;
  if (first) recording_ = std::make_unique<Recording>(model_, batch);
  Recording& r = *recording_;
  try {
    r.look_at(model_, tokens, state);
    const std::size_t parts = model_.blocks().size() + 1;
    for (std::size_t part = 0; part < parts; ++part) {
      if (first) r.record(model_, part);
      r.graphs[part]->replay();
      if (part + 1 < parts) MhlaAttentionImpl::run_step(r.steps[part], state.layers[part]);
    }
  } catch (...) {  // half a recording is none
    recording_.reset();
    last_batch_ = 0;
    throw;
  }
  return r.logits.clone();
}

#else

struct Decoder::Recording {};

torch::Tensor Decoder::decode(const torch::Tensor& tokens, LmState& state) { return model_.decode(tokens, state); }

#endif

Decoder::Decoder(LanguageModelImpl& model) : model_(model) {}
Decoder::~Decoder() = default;

}  // namespace mhla
