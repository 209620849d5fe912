// torch.ops.mhla.chunkwise, the causal form, and its backward.
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kChunkwiseSchema =
    "chunkwise(Tensor q, Tensor k, Tensor v, Tensor mix, int chunk=64, Tensor? q_den=None, Tensor? k_den=None, "
    "Tensor? cu_seqlens=None, str feature_map=\"relu_eps\", str normalizer=\"none\", float eps=1e-6, "
    "float? scale=None, str beyond_mix=\"error\") -> Tensor";
constexpr const char* kChunkwiseBackwardSchema =
    "chunkwise_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor mix, int chunk, Tensor? q_den, "
    "Tensor? k_den, Tensor? cu_seqlens, str feature_map, str normalizer, float eps, float? scale, str beyond_mix, "
    "bool[6] wanted) -> Tensor[]";

using MaybeTensor = const Optional<at::Tensor>&;
using ChunkwiseForward = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    std::int64_t, MaybeTensor, MaybeTensor, MaybeTensor, Text, Text, double,
                                    Optional<double>, Text);
using ChunkwiseBackward = std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                  const at::Tensor&, const at::Tensor&, std::int64_t, MaybeTensor,
                                                  MaybeTensor, MaybeTensor, Text, Text, double, Optional<double>, Text,
                                                  Wanted);

BeyondMix parse_beyond_mix(std::string_view name) {
  if (name == "error") return BeyondMix::kError;
  if (name == "extend") return BeyondMix::kExtend;
  fail("chunkwise_forward: beyond_mix is '", name, "', expected error or extend");
}

std::string_view name_of_beyond(BeyondMix beyond) { return beyond == BeyondMix::kExtend ? "extend" : "error"; }

struct Chunkwise {
  using Options = ChunkwiseOptions;
  using Params = ChunkwiseParams;
  using Grads = ChunkwiseGrads;
  static constexpr const char *kOp = "mhla::chunkwise", *kBackwardOp = "mhla::chunkwise_backward";
  static constexpr const char* kForwardEntry = "chunkwise_forward";
  static constexpr const char* kBackwardEntry = "chunkwise_backward";
  static constexpr auto forward = chunkwise_forward;
  static constexpr auto backward = chunkwise_backward;
  static constexpr auto forward_workspace = chunkwise_forward_workspace;
  static constexpr auto backward_workspace = chunkwise_backward_workspace;
  static constexpr auto kept = chunkwise_kept;

  static Options options(std::int64_t chunk, Text feature_map, Text normalizer, double eps, Optional<double> scale,
                         Text beyond_mix) {
    return {.chunk = chunk,
            .feature_map = parse_feature_map(view_of(feature_map)),
            .normalizer = parse_normalizer(view_of(normalizer)),
            .eps = eps,
            .scale = scale.has_value() ? std::optional<double>(*scale) : std::nullopt,
            .beyond_mix = parse_beyond_mix(view_of(beyond_mix))};
  }
  static Params params(const Options& options) {
    Params params;
    params.chunk = options.chunk;
    params.feature_map = options.feature_map;
    params.normalizer = options.normalizer;
    params.eps = options.eps;
    params.scale = options.scale;
    params.beyond_mix = options.beyond_mix;
    return params;
  }
  static Optional<double> scale_of(const Options& options) {
    return options.scale ? Optional<double>(*options.scale) : kNone;
  }
  static at::Tensor call(const AttentionInputs& in, const Options& o) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("mhla::chunkwise", "").typed<ChunkwiseForward>();
    return op.call(in.q, in.k, in.v, in.mix, o.chunk, maybe(in.q_den), maybe(in.k_den), maybe(in.cu_seqlens),
                   text_of(name_of(o.feature_map)), text_of(name_of(o.normalizer)), o.eps, scale_of(o),
                   text_of(name_of_beyond(o.beyond_mix)));
  }
  static std::vector<at::Tensor> call_backward(const at::Tensor& dout, const AttentionInputs& in, const Options& o,
                                               const Wanted& wanted) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("mhla::chunkwise_backward", "").typed<ChunkwiseBackward>();
    return op.call(dout, in.q, in.k, in.v, in.mix, o.chunk, maybe(in.q_den), maybe(in.k_den), maybe(in.cu_seqlens),
                   text_of(name_of(o.feature_map)), text_of(name_of(o.normalizer)), o.eps, scale_of(o),
                   text_of(name_of_beyond(o.beyond_mix)), wanted);
  }
};

// The function behind a dispatch key: the schema's arguments, gathered.
template <at::Tensor (*run)(const AttentionInputs&, const ChunkwiseOptions&)>
at::Tensor entry(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mix,
                 std::int64_t chunk, MaybeTensor q_den, MaybeTensor k_den, MaybeTensor cu_seqlens, Text feature_map,
                 Text normalizer, double eps, Optional<double> scale, Text beyond_mix) {
  return run({q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), value_or_undefined(cu_seqlens)},
             Chunkwise::options(chunk, feature_map, normalizer, eps, scale, beyond_mix));
}

template <std::vector<at::Tensor> (*run)(const at::Tensor&, const AttentionInputs&, const ChunkwiseOptions&,
                                         const Wanted&)>
std::vector<at::Tensor> backward_entry(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const at::Tensor& mix, std::int64_t chunk,
                                       MaybeTensor q_den, MaybeTensor k_den, MaybeTensor cu_seqlens, Text feature_map,
                                       Text normalizer, double eps, Optional<double> scale, Text beyond_mix,
                                       Wanted wanted) {
  return run(dout, {q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), value_or_undefined(cu_seqlens)},
             Chunkwise::options(chunk, feature_map, normalizer, eps, scale, beyond_mix), wanted);
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(kChunkwiseSchema);
  m.def(std::string(kChunkwiseSchema).insert(std::string("chunkwise").size(), "_shape").c_str());
  m.def(kChunkwiseBackwardSchema);
}

template <class Library>
void implement_chunkwise(Library& m) {
  m.impl("chunkwise", entry<forward_kernel<Chunkwise>>);
  m.impl("chunkwise_backward", backward_entry<backward_kernel<Chunkwise>>);
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) { implement_chunkwise(m); }
TORCH_LIBRARY_IMPL(mhla, CUDA, m) { implement_chunkwise(m); }
TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("chunkwise", entry<forward_meta<Chunkwise>>);
  m.impl("chunkwise_shape", entry<forward_meta<Chunkwise>>);  // for who answers in its place
  m.impl("chunkwise_backward", backward_entry<backward_meta<Chunkwise>>);
}
TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("chunkwise", entry<forward_autograd<Chunkwise>>);
  m.impl("chunkwise_backward", backward_entry<backward_autograd<Chunkwise>>);
}
TORCH_LIBRARY_IMPL(mhla, AutocastCPU, m) { m.impl("chunkwise", entry<forward_autocast<Chunkwise>>); }
TORCH_LIBRARY_IMPL(mhla, Autocast, m) { m.impl("chunkwise", entry<forward_autocast<Chunkwise>>); }

}  // namespace

at::Tensor chunkwise(const AttentionInputs& inputs, const ChunkwiseOptions& options) {
  return Chunkwise::call(inputs, options);
}

}  // namespace mhla::ops
