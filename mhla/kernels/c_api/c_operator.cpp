// The bidirectional and the causal form behind mhla/c.h: every field handed on, nothing decided here.
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/c_api/c_api.h"
#include "mhla/kernels/chunkwise/chunkwise.h"

namespace mhla::c_api {
namespace {

mhla_bidirectional_params bidirectional_defaults() {
  const BidirectionalParams cpp;
  mhla_bidirectional_params params{};
  params.struct_size = sizeof params;
  params.feature_map = static_cast<std::int32_t>(cpp.feature_map);
  params.normalizer = static_cast<std::int32_t>(cpp.normalizer);
  params.eps = cpp.eps;
  params.scale = cpp.scale;
  return params;
}

mhla_chunkwise_params chunkwise_defaults() {
  const ChunkwiseParams cpp;
  mhla_chunkwise_params params{};
  params.struct_size = sizeof params;
  params.chunk = cpp.chunk;
  params.feature_map = static_cast<std::int32_t>(cpp.feature_map);
  params.normalizer = static_cast<std::int32_t>(cpp.normalizer);
  params.beyond_mix = static_cast<std::int32_t>(cpp.beyond_mix);
  params.eps = cpp.eps;
  return params;
}

mhla_grads grads_defaults() {
  mhla_grads grads{};
  grads.struct_size = sizeof grads;
  return grads;
}

Layout layout_of(const mhla_layout& c, const char* entry) {
  if (c.rank < 1 || c.rank > 3) fail(entry, ": layout.rank is ", c.rank, ", expected 1, 2 or 3");
  Layout layout;
  layout.rank = c.rank;
  if (c.rank == 1) {
    layout.block_size = c.block_size;
  } else {  // right-aligned in C++
    std::copy_n(c.grid, c.rank, layout.grid.end() - c.rank);
    std::copy_n(c.blocks, c.rank, layout.blocks.end() - c.rank);
  }
  return layout;
}

// The fields that the two forms call alike.
template <class Params, class CParams>
Params inputs_of(const CParams& c, const char* entry) {
  Params params;
  params.q = view_of(c.q, entry, "q");
  params.k = view_of(c.k, entry, "k");
  params.v = view_of(c.v, entry, "v");
  params.maybe_q_den = view_of(c.maybe_q_den, entry, "q_den");
  params.maybe_k_den = view_of(c.maybe_k_den, entry, "k_den");
  params.mix = view_of(c.mix, entry, "mix");
  params.maybe_cu_seqlens = view_of(c.maybe_cu_seqlens, entry, "cu_seqlens");
  params.feature_map = enum_of(c.feature_map, FeatureMap::kIdentity, entry, "feature_map");
  params.normalizer = enum_of(c.normalizer, Normalizer::kOfficial, entry, "normalizer");
  params.eps = c.eps;
  return params;
}

BidirectionalParams bidirectional_of(const mhla_bidirectional_params* source, const char* entry) {
  const auto c = read(source, sizeof(mhla_bidirectional_params), bidirectional_defaults(), entry, "params");
  auto params = inputs_of<BidirectionalParams>(c, entry);
  params.layout = layout_of(c.layout, entry);
  params.scale = c.scale;
  return params;
}

ChunkwiseParams chunkwise_of(const mhla_chunkwise_params* source, const char* entry) {
  const auto c = read(source, sizeof(mhla_chunkwise_params), chunkwise_defaults(), entry, "params");
  auto params = inputs_of<ChunkwiseParams>(c, entry);
  params.chunk = c.chunk;
  params.beyond_mix = enum_of(c.beyond_mix, BeyondMix::kExtend, entry, "beyond_mix");
  if (c.has_scale != 0) params.scale = c.scale;
  return params;
}

template <class Grads>
Grads grads_of(const mhla_grads* source, const char* entry) {
  const auto c = read(source, sizeof(mhla_grads), grads_defaults(), entry, "grads");
  Grads grads;
  grads.dout = view_of(c.dout, entry, "dout");
  grads.dq = view_of(c.dq, entry, "dq");
  grads.dk = view_of(c.dk, entry, "dk");
  grads.dv = view_of(c.dv, entry, "dv");
  grads.dmix = view_of(c.dmix, entry, "dmix");
  grads.maybe_dq_den = view_of(c.maybe_dq_den, entry, "dq_den");
  grads.maybe_dk_den = view_of(c.maybe_dk_den, entry, "dk_den");
  return grads;
}

View out_of(const mhla_tensor* out, const char* entry) { return view_of(required(out, entry, "out"), entry, "out"); }

}  // namespace
}  // namespace mhla::c_api

using namespace mhla;
using namespace mhla::c_api;

void mhla_bidirectional_params_init(mhla_bidirectional_params* params, size_t struct_size) {
  init(params, struct_size, bidirectional_defaults());
}

void mhla_chunkwise_params_init(mhla_chunkwise_params* params, size_t struct_size) {
  init(params, struct_size, chunkwise_defaults());
}

void mhla_grads_init(mhla_grads* grads, size_t struct_size) { init(grads, struct_size, grads_defaults()); }

mhla_status mhla_bidirectional_forward(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                       const mhla_run_options* maybe_options) {
  static constexpr char kEntry[] = "mhla_bidirectional_forward";
  return guarded([&] {
    bidirectional_forward(bidirectional_of(params, kEntry), out_of(out, kEntry), run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_bidirectional_backward(const mhla_bidirectional_params* params, const mhla_grads* grads,
                                        const mhla_run_options* maybe_options) {
  static constexpr char kEntry[] = "mhla_bidirectional_backward";
  return guarded([&] {
    bidirectional_backward(bidirectional_of(params, kEntry), grads_of<BidirectionalGrads>(grads, kEntry),
                           run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_bidirectional_forward_workspace(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                                 const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_bidirectional_forward_workspace";
  return guarded([&] {
    required(bytes, kEntry, "bytes") = bidirectional_forward_workspace(
        bidirectional_of(params, kEntry), out_of(out, kEntry), run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_bidirectional_backward_workspace(const mhla_bidirectional_params* params, const mhla_grads* grads,
                                                  const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_bidirectional_backward_workspace";
  return guarded([&] {
    required(bytes, kEntry, "bytes") =
        bidirectional_backward_workspace(bidirectional_of(params, kEntry), grads_of<BidirectionalGrads>(grads, kEntry),
                                         run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_bidirectional_kept(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                    const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_bidirectional_kept";
  return guarded([&] {
    required(bytes, kEntry, "bytes") = bidirectional_kept(bidirectional_of(params, kEntry), out_of(out, kEntry),
                                                          run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_chunkwise_forward(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                   const mhla_run_options* maybe_options) {
  static constexpr char kEntry[] = "mhla_chunkwise_forward";
  return guarded([&] {
    chunkwise_forward(chunkwise_of(params, kEntry), out_of(out, kEntry), run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_chunkwise_backward(const mhla_chunkwise_params* params, const mhla_grads* grads,
                                    const mhla_run_options* maybe_options) {
  static constexpr char kEntry[] = "mhla_chunkwise_backward";
  return guarded([&] {
    chunkwise_backward(chunkwise_of(params, kEntry), grads_of<ChunkwiseGrads>(grads, kEntry),
                       run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_chunkwise_forward_workspace(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                             const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_chunkwise_forward_workspace";
  return guarded([&] {
    required(bytes, kEntry, "bytes") = chunkwise_forward_workspace(chunkwise_of(params, kEntry), out_of(out, kEntry),
                                                                   run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_chunkwise_backward_workspace(const mhla_chunkwise_params* params, const mhla_grads* grads,
                                              const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_chunkwise_backward_workspace";
  return guarded([&] {
    required(bytes, kEntry, "bytes") = chunkwise_backward_workspace(
        chunkwise_of(params, kEntry), grads_of<ChunkwiseGrads>(grads, kEntry), run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_chunkwise_kept(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_chunkwise_kept";
  return guarded([&] {
    required(bytes, kEntry, "bytes") =
        chunkwise_kept(chunkwise_of(params, kEntry), out_of(out, kEntry), run_options_of(maybe_options, kEntry));
  });
}
