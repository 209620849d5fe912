#include "mhla/models/lm/decoder.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "mhla/kernels/streaming/streaming_record.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/ops/cuda_graph.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/ops/torch.h"

namespace mhla {

#ifdef MHLA_TORCH_CUDA

namespace {

bool can_record(const LanguageModelImpl& model) {
  return model.device().is_cuda() && mhla_of(model.blocks().front()) != nullptr && model.config().short_conv == 0 &&
         !ops::autocast_on(at::kCUDA);
}

}  // namespace

// What a step reads lies at the same place in every replay: tokens, and in one buffer the position of every sequence,
// then the tables of all layers (streaming_record.h), those of closers last, so that most steps bring less.
struct Decoder::Recording {
  Recording(LanguageModelImpl& model, LmState& state, std::int64_t end)
      : batch(state.batch()),
        layers(static_cast<std::int64_t>(state.layers.size())),
        room(2 * end),
        record(state.layers.front().stream_pointers()),
        tokens(torch::empty({batch, 1}, torch::TensorOptions(torch::kLong).device(model.device()))),
        buffer(torch::empty({told_bytes(true)}, torch::TensorOptions(torch::kByte).device(model.device()))),
        positions(buffer.narrow(0, 0, 8 * batch).view(torch::kLong)),
        turns(mhla_of(model.blocks().front())->stream_table({}, room)),
        pool(at::cuda::graph_pool_handle()),
        stream(ops::recording_stream(model.device())) {}

  [[nodiscard]] std::int64_t closers_at() const { return 8 * batch + layers * record.sequences_bytes(); }
  [[nodiscard]] std::int64_t told_bytes(bool closing) const {
    return closers_at() + (closing ? layers * record.closers_bytes() : 0);
  }
  [[nodiscard]] StreamingTable table(const torch::Tensor& from, std::int64_t layer) const {
    std::byte* const data = static_cast<std::byte*>(from.data_ptr());
    const std::int64_t own = record.sequences_bytes(), closing = record.closers_bytes();
    return {{data + 8 * batch + layer * own, static_cast<std::size_t>(own)},
            {data + closers_at() + layer * closing, static_cast<std::size_t>(closing)}};
  }

  // What a step reads, into its place: whether it completes a chunk; nothing where states like these cannot be told:
  // of another configuration than the recording's, or with prefixes still to be mixed.
  std::optional<bool> tell(const torch::Tensor& given, LmState& state) {
    const torch::Tensor host = torch::empty({told_bytes(true)}, torch::TensorOptions(torch::kByte).pinned_memory(true));
    std::copy(state.positions().begin(), state.positions().end(), static_cast<std::int64_t*>(host.data_ptr()));
    bool closing = false;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::vector<StreamingState*> own = state.layers[static_cast<std::size_t>(layer)].stream_pointers();
      if (!record.fits(own)) return std::nullopt;
      closing = record.tell(own, table(host, layer)) || closing;
    }
    const std::int64_t bytes = told_bytes(closing);
    buffer.narrow(0, 0, bytes).copy_(host.narrow(0, 0, bytes), /*non_blocking=*/true);
    tokens.copy_(given.unsqueeze(1));
    return closing;
  }

  // A step, which is being recorded.
  torch::Tensor work(LanguageModelImpl& model, LmState& state, bool closing) {
    RopeTable angles;
    if (turns.cos.defined()) {
      const auto rows = [&](const torch::Tensor& all) { return all.index_select(0, positions).unsqueeze(1); };
      angles = {rows(turns.cos), rows(turns.sin), turns.halves};
    }
    torch::Tensor x = model.embed(tokens);
    RunOptions run;
    run.stream = ops::current_stream(x);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const LmBlock& block = model.blocks()[static_cast<std::size_t>(layer)];
      const MhlaAttentionImpl::StreamStep step = block.ptr()->open_step(x, angles, nullptr);
      const auto states = state.layers[static_cast<std::size_t>(layer)].stream_pointers();
      record.launch(MhlaAttentionImpl::step_params(step, states), table(buffer, layer), closing, run);
      x = block.ptr()->close_step(x, step);
    }
    return model.logits(model.normed(x).select(1, 0));
  }

  void capture(LanguageModelImpl& model, LmState& state, bool closing) {
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    ops::record_graph(*graph, stream, pool, [&] { logits[closing] = work(model, state, closing); });
    graphs[closing] = std::move(graph);
  }

  std::int64_t batch, layers;
  std::int64_t room;  // positions that there are angles for
  StreamingRecord record;
  torch::Tensor tokens;     // [B, 1]
  torch::Tensor buffer;     // bytes
  torch::Tensor positions;  // [B], in it
  RopeTable turns;          // of all positions
  at::cuda::MempoolId_t pool;
  c10::cuda::CUDAStream stream;
  std::unique_ptr<at::cuda::CUDAGraph> graphs[2];  // without and with what a complete chunk takes
  torch::Tensor logits[2];                         // [B, vocab]
};

torch::Tensor Decoder::decode(const torch::Tensor& tokens, LmState& state) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t batch = tokens.dim() == 1 ? tokens.size(0) : -1;
  const bool again = batch == last_batch_ && batch > 0 && can_record(model_);
  replayed_ = false;
  if (!again) {  // libraries set themselves up in the step that is not recorded
    recording_.reset();
    last_batch_ = 0;
    const torch::Tensor logits = model_.decode(tokens, state);
    last_batch_ = batch;
    return logits;
  }
  model_.expect_step(tokens.unsqueeze(1), state);
  mhla_of(model_.blocks().front())->expect_room(state.layers.front(), 1);
  const std::int64_t end = *std::max_element(state.positions().begin(), state.positions().end()) + 1;
  if (recording_ && end > recording_->room) recording_.reset();
  try {
    if (!recording_) recording_ = std::make_unique<Recording>(model_, state, end);
    Recording& r = *recording_;
    const std::optional<bool> told = r.tell(tokens, state);
    if (!told) return model_.decode(tokens, state);
    const bool closing = *told;
    if (!r.graphs[closing]) r.capture(model_, state, closing);
    r.graphs[closing]->replay();
    for (AttentionState& layer : state.layers) {
      StreamingRecord::moved(layer.stream_pointers(), ops::current_stream(r.tokens));
      for (std::int64_t& position : layer.positions) ++position;
    }
    replayed_ = true;
    return r.logits[closing].clone();
  } catch (...) {  // half a recording is none
    recording_.reset();
    last_batch_ = 0;
    throw;
  }
}

#else

struct Decoder::Recording {};

torch::Tensor Decoder::decode(const torch::Tensor& tokens, LmState& state) { return model_.decode(tokens, state); }

#endif

Decoder::Decoder(LanguageModelImpl& model) : model_(model) {}
Decoder::~Decoder() = default;

}  // namespace mhla
