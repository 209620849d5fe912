// torch.classes.mhla.StreamingState: the streaming states of a batch, one per sequence, behind one handle, on the
// device of mix. Tokens go in and out as tensors, and so does the state itself: snapshot() gives named tensors in host
// memory and text, which pickle writes.
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::ops {
namespace {

constexpr const char* kState = "StreamingState";
constexpr const char* kAppend = "streaming_append";

using Tensors = c10::Dict<std::string, at::Tensor>;
using Texts = c10::Dict<std::string, std::string>;
using MaybeTensor = const Optional<at::Tensor>&;

// "3.k": tensor k of sequence 3. What belongs to the batch has no number.
std::string name_in_batch(std::size_t sequence, const std::string& name) { return str(sequence, ".", name); }

struct StreamingBatch : torch::CustomClassHolder {
  std::vector<StreamingState> states;

  StreamingBatch() = default;
  StreamingBatch(const at::Tensor& mix, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                 std::int64_t key_size, std::int64_t value_size, std::int64_t chunk, at::ScalarType dtype,
                 const std::string& feature_map, const std::string& normalizer, double eps, Optional<double> scale,
                 const std::string& beyond_mix, bool den_features, Optional<std::int64_t> rollback) {
    if (batch < 1) fail(kState, ": batch is ", batch, ", expected at least 1");
    StreamingConfig config;
    config.H = heads, config.Hkv = kv_heads, config.D = key_size, config.E = value_size, config.chunk = chunk;
    config.dtype = dtype_of(at::empty({0}, dtype), kState, "dtype");
    config.feature_map = parse_feature_map(feature_map);
    config.normalizer = parse_normalizer(normalizer);
    config.eps = eps;
    if (scale.has_value()) config.scale = *scale;
    if (beyond_mix != "error" && beyond_mix != "extend")
      fail(kState, ": beyond_mix is '", beyond_mix, "', expected error or extend");
    config.beyond_mix = beyond_mix == "extend" ? BeyondMix::kExtend : BeyondMix::kError;
    config.den_features = den_features;
    if (rollback.has_value()) config.rollback = *rollback;
    config.device = mix.is_cuda() ? mix.get_device() : kCpu;
    const at::Tensor wide = mix.to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    states.emplace_back(config, view_of(wide, kState, "mix"));
    for (std::int64_t b = 1; b < batch; ++b) states.push_back(states.front());
  }

  at::Tensor append(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, MaybeTensor q_den,
                    MaybeTensor k_den) {
    RECORD_USER_SCOPE("mhla::streaming");
    const auto view = [](const at::Tensor& x, const char* name) {
      if (at::GradMode::is_enabled() && x.defined() && x.requires_grad())
        fail(kAppend, ": ", name,
             " requires a gradient, but streaming has none: use torch.no_grad(), or the causal form");
      return view_of(x, kAppend, name);
    };
    std::vector<StreamingState*> pointers;
    for (StreamingState& state : states) pointers.push_back(&state);
    StreamingParams params;
    params.states = pointers;
    params.q = view(q, "q"), params.k = view(k, "k"), params.v = view(v, "v");
    if (q_den.has_value()) params.maybe_q_den = view(*q_den, "q_den");
    if (k_den.has_value()) params.maybe_k_den = view(*k_den, "k_den");
    const at::Tensor out = q.dim() == 4 && v.dim() == 4
                               ? at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options())
                               : at::empty({0}, q.options());
    params.out = output_view(out, kAppend, "out");
    RunOptions run;
    at::Tensor memory;
    if (q.is_cuda()) {  // scratch memory from PyTorch's allocator, in the order of its stream
      run.stream = current_stream(q);
      memory = at::empty({streaming_append_workspace(params, run)}, q.options().dtype(at::kByte));
      run.workspace = {static_cast<std::byte*>(memory.data_ptr()), static_cast<std::size_t>(memory.numel())};
    }
    streaming_append(params, run);
    return out;
  }

  std::vector<std::int64_t> positions() const {
    std::vector<std::int64_t> all;
    for (const StreamingState& state : states) all.push_back(state.position());
    return all;
  }
  std::int64_t rollback_limit() const {
    std::int64_t least = states.front().rollback_limit();
    for (const StreamingState& state : states) least = std::min(least, state.rollback_limit());
    return least;
  }
  void rollback(std::int64_t tokens) {
    if (tokens < 0 || tokens > rollback_limit()) {  // all or none
      for (StreamingState& state : states) {
        if (tokens < 0 || tokens > state.rollback_limit()) state.rollback(tokens);  // throws, naming R
      }
    }
    for (StreamingState& state : states) state.rollback(tokens);
  }
  void reset() {
    for (StreamingState& state : states) state.reset();
  }
  std::int64_t capacity() const { return states.front().capacity(); }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const StreamingState& state : states) sum += state.bytes();
    return sum;
  }
  std::string candidate() const { return std::string(states.front().candidate()); }

  // Copies of the sequences named, in that order: a fork, a larger batch, a beam search's choice.
  c10::intrusive_ptr<StreamingBatch> select(const std::vector<std::int64_t>& sequences) const {
    auto chosen = c10::make_intrusive<StreamingBatch>();
    if (sequences.empty()) fail(kState, "::select: no sequences are named, expected at least one");
    for (const std::int64_t b : sequences) {
      if (b < 0 || b >= static_cast<std::int64_t>(states.size()))
        fail(kState, "::select: sequence is ", b, ", expected 0 to ", states.size() - 1);
      chosen->states.push_back(states[static_cast<std::size_t>(b)]);
    }
    return chosen;
  }

  // Copies of all sequences of all batches, in that order. They may be at different positions.
  static c10::intrusive_ptr<StreamingBatch> join(const std::vector<c10::intrusive_ptr<StreamingBatch>>& batches) {
    auto all = c10::make_intrusive<StreamingBatch>();
    for (const auto& batch : batches) all->states.insert(all->states.end(), batch->states.begin(), batch->states.end());
    if (all->states.empty()) fail(kState, "::join: no states are given, expected at least one");
    return all;
  }

  std::tuple<Tensors, Texts> snapshot() const {
    Tensors tensors;
    Texts texts;
    texts.insert("batch", str(states.size()));
    for (std::size_t b = 0; b < states.size(); ++b) {
      for (const NamedView& named : states[b].views()) {
        const at::IntArrayRef sizes(named.view.shape.data(), static_cast<std::size_t>(named.view.rank));
        const at::Tensor copy = at::empty(sizes, scalar_type_of(named.view.dtype));
        if (copy.numel() > 0) std::memcpy(copy.data_ptr(), named.view.data, copy.nbytes());
        tensors.insert(name_in_batch(b, named.name), copy);
      }
      for (const auto& [name, text] : states[b].metadata()) texts.insert(name_in_batch(b, name), text);
    }
    return {tensors, texts};
  }
  static c10::intrusive_ptr<StreamingBatch> load(const std::tuple<Tensors, Texts>& saved) {
    const auto& [tensors, texts] = saved;
    if (!texts.contains("batch")) fail(kState, "::load: the text has no 'batch'");
    const std::int64_t batch = std::atoll(texts.at("batch").c_str());
    if (batch < 1) fail(kState, "::load: batch is '", texts.at("batch"), "', expected a number from 1 on");
    auto loaded = c10::make_intrusive<StreamingBatch>();
    for (std::size_t b = 0; b < static_cast<std::size_t>(batch); ++b) {
      const std::string prefix = name_in_batch(b, "");
      std::vector<at::Tensor> held;  // contiguous and in host memory while the views are read
      std::vector<NamedView> views;
      for (const auto& item : tensors) {
        if (item.key().rfind(prefix, 0) != 0) continue;
        held.push_back(item.value().cpu().contiguous());
        views.push_back({item.key().substr(prefix.size()), view_of(held.back(), kState, item.key().c_str())});
      }
      std::map<std::string, std::string> metadata;
      for (const auto& item : texts) {
        if (item.key().rfind(prefix, 0) == 0) metadata[item.key().substr(prefix.size())] = item.value();
      }
      loaded->states.push_back(StreamingState::load(views, metadata));
    }
    return loaded;
  }
};

using Handle = c10::intrusive_ptr<StreamingBatch>;

Handle load_streaming_state(const Tensors& tensors, const Texts& texts) {
  return StreamingBatch::load({tensors, texts});
}

Handle join_streaming_states(const std::vector<Handle>& states) { return StreamingBatch::join(states); }

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.class_<StreamingBatch>("StreamingState")
      .def(torch::init<const at::Tensor&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                       std::int64_t, at::ScalarType, const std::string&, const std::string&, double, Optional<double>,
                       const std::string&, bool, Optional<std::int64_t>>())
      .def("append", [](const Handle& self, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        MaybeTensor q_den, MaybeTensor k_den) { return self->append(q, k, v, q_den, k_den); })
      .def("positions", [](const Handle& self) { return self->positions(); })
      .def("rollback", [](const Handle& self, std::int64_t tokens) { self->rollback(tokens); })
      .def("rollback_limit", [](const Handle& self) { return self->rollback_limit(); })
      .def("reset", [](const Handle& self) { self->reset(); })
      .def("capacity", [](const Handle& self) { return self->capacity(); })
      .def("bytes", [](const Handle& self) { return self->bytes(); })
      .def("candidate", [](const Handle& self) { return self->candidate(); })
      .def("select",
           [](const Handle& self, const std::vector<std::int64_t>& sequences) { return self->select(sequences); })
      .def("snapshot", [](const Handle& self) { return self->snapshot(); })
      .def_pickle([](const Handle& self) { return self->snapshot(); },
                  [](const std::tuple<Tensors, Texts>& saved) { return StreamingBatch::load(saved); });
  m.def("load_streaming_state", load_streaming_state);
  m.def("join_streaming_states", join_streaming_states);
}

}  // namespace
}  // namespace mhla::ops
