// MHLA by summaries, blocks gathered from the raster:
//   S = k~^T v,  S~ = mix S,  out = scale q~ S~ / (eps + den);  den = q~ . (mix z), official: mix (q~ . z)
// A block smaller than the others is filled up with tokens of zeros: k~ = 0 adds nothing to a summary, and what a query
// of zeros gets is not gathered back.
#include "mhla/models/export/onnx_attention.h"

#include <cmath>
#include <numeric>

#include "mhla/core/error.h"

namespace mhla {
namespace {

using Value = OnnxGraph::Value;

constexpr double kRopeBase = 10000.0;
constexpr double kF32Epsilon = 0x1p-23;  // of a norm of q and k that names none

class Blocks {
 public:
  Blocks(const Layout& layout, std::int64_t N) : map_(layout, N), back_(static_cast<std::size_t>(N)) {
    const std::int64_t C = map_.largest();
    for (std::int64_t block = 0; block < map_.blocks(); ++block) {
      for (std::int64_t run = 0; run < map_.runs(block); ++run) {
        for (std::int64_t i = 0; i < map_.run_length(block); ++i) {
          const std::int64_t token = map_.run_start(block, run) + i;
          back_[static_cast<std::size_t>(token)] = static_cast<std::int64_t>(order_.size());
          order_.push_back(token);
        }
      }
      while (static_cast<std::int64_t>(order_.size()) < (block + 1) * C) order_.push_back(N), filled_ = true;
    }
    std::vector<std::int64_t> raster(order_.size());
    std::iota(raster.begin(), raster.end(), std::int64_t{0});
    in_order_ = !filled_ && raster == order_;
  }
  [[nodiscard]] std::int64_t count() const { return map_.blocks(); }

  // [B, N, H, D] to [B, H, M, C, D].
  Value cut(OnnxParts& p, Value x, std::int64_t heads, std::int64_t size) const {
    if (filled_)  // token N: zeros
      x = p.graph().node("Pad", {x, p.graph().integers({0, 0, 0, 0, 0, 1, 0, 0})});
    if (!in_order_) x = p.gather(x, order_, 1);
    return p.transpose(p.reshape(x, {0, map_.blocks(), map_.largest(), heads, size}), {0, 3, 1, 2, 4});
  }
  // [B, H, M, C, E] to [B, N, H * E].
  Value join(OnnxParts& p, const Value& x, std::int64_t width) const {
    const Value rows = p.reshape(p.transpose(x, {0, 2, 3, 1, 4}), {0, map_.blocks() * map_.largest(), width});
    return in_order_ ? rows : p.gather(rows, back_, 1);
  }

 private:
  BlockMap map_;
  std::vector<std::int64_t> order_, back_;  // token of a place, place of a token
  bool filled_ = false, in_order_ = false;
};

// [B, N, H * D] of q, k and v side by side to [B, H, N, D] each, q rotated where it has positions.
Value softmax_core(OnnxParts& p, const Value& q, const Value& k, const Value& v, std::int64_t size, std::int64_t width,
                   std::int64_t N) {
  const Value scaled = p.multiply(q, p.graph().number(1.0 / std::sqrt(static_cast<double>(size))));
  const Value scores = p.matmul(p.transpose(scaled, {0, 2, 1, 3}), p.transpose(k, {0, 2, 3, 1}));
  const Value weights = p.graph().node("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  const Value out = p.matmul(weights, p.transpose(v, {0, 2, 1, 3}));  // [B, H, N, D]
  return p.reshape(p.transpose(out, {0, 2, 1, 3}), {0, N, width});
}

}  // namespace

Value onnx_mhla(OnnxParts& p, const Value& x, const std::string& name, const MhlaAttentionOptions& o) {
  if (o.causal || o.layout.rank != 2 || o.kv_heads != o.heads || o.short_conv != 0)
    fail("export: ", name, " is causal, has fewer heads of k and v, or no grid, expected the attention of an image");
  OnnxGraph& g = p.graph();
  const std::int64_t N = o.layout.grid[1] * o.layout.grid[2], H = o.heads;
  const std::int64_t widths[] = {H * o.head_dim, H * o.value_dim};
  const Value y = o.inner_norm ? p.layer_norm(x, name + ".norm", 1e-5) : x;
  std::vector<Value> qkv = p.split(p.linear(y, name + ".qkv"), {widths[0], widths[0], widths[1]});
  if (o.qk_norm) {
    const double eps = o.qk_norm_eps.value_or(kF32Epsilon);
    qkv[0] = p.rms_norm(qkv[0], name + ".q_norm", eps), qkv[1] = p.rms_norm(qkv[1], name + ".k_norm", eps);
  }
  const std::int64_t D = feature_size(o.features, o.head_dim), E = o.value_dim;
  const auto mapped = [&](const Value& value, const char* map) {
    return p.features(p.reshape(value, {0, N, H, o.head_dim}), name + map, o.features, o.head_dim);
  };
  const Value q_den = mapped(qkv[0], ".feature_map_q"), k_den = mapped(qkv[1], ".feature_map_k");
  const auto turned = [&](const Value& value) { return o.rope ? p.rope(value, o.layout, D, o.rope_base) : value; };

  const Blocks blocks(o.layout, N);
  const Value q = blocks.cut(p, turned(q_den), H, D), k = blocks.cut(p, turned(k_den), H, D),
              v = blocks.cut(p, p.reshape(qkv[2], {0, N, H, E}), H, E);
  const Value mix = p.weight(name + ".mix");  // [M, M] or [H, M, M]
  const std::int64_t M = blocks.count();
  const Value S = p.matmul(p.transpose(k, {0, 1, 2, 4, 3}), v);  // [B, H, M, D, E]
  const Value mixed = p.reshape(p.matmul(mix, p.reshape(S, {0, H, M, D * E})), {0, H, M, D, E});
  Value out = p.matmul(q, mixed);  // [B, H, M, C, E]
  if (o.scale.value_or(1.0) != 1.0) out = p.multiply(out, g.number(*o.scale));
  const Normalizer normalizer = o.normalizer.value_or(Normalizer::kPaper);
  if (normalizer != Normalizer::kNone) {
    const Value qd = o.rope ? blocks.cut(p, q_den, H, D) : q, kd = o.rope ? blocks.cut(p, k_den, H, D) : k;
    const Value z = p.sum(kd, 3, false);  // [B, H, M, D]
    Value den;                            // [B, H, M, C, 1]
    if (normalizer == Normalizer::kPaper) {
      den = p.matmul(qd, p.reshape(p.matmul(mix, z), {0, H, M, D, 1}));
    } else {
      const std::int64_t C = N / M;
      const Value seen = p.reshape(p.matmul(qd, p.reshape(z, {0, H, M, D, 1})), {0, H, M, C});
      den = p.reshape(p.matmul(mix, seen), {0, H, M, C, 1});
    }
    out = p.divide(out, p.add(den, g.number(o.eps)));
  }
  if (o.head_norm) out = p.rms_norm(out, name + ".head_norm", o.norm_eps);
  out = blocks.join(p, out, widths[1]);
  const auto with_lepe = [&] { return p.add(out, p.grid_conv(qkv[2], name + ".lepe", o.layout)); };
  if (o.lepe != 0 && o.lepe_inside_gate) out = with_lepe();
  if (o.gate != Gate::kNone) {
    const Value gate = p.linear(y, name + ".gate");
    out = p.multiply(out, o.gate == Gate::kSilu ? p.silu(gate) : gate);
  }
  if (o.lepe != 0 && !o.lepe_inside_gate) out = with_lepe();
  return p.linear(out, name + ".out");
}

Value onnx_softmax(OnnxParts& p, const Value& x, const std::string& name, std::int64_t dim, std::int64_t heads,
                   const Layout& layout) {
  const std::int64_t N = layout.grid[1] * layout.grid[2], D = dim / heads;
  const std::vector<Value> qkv = p.split(p.linear(x, name + ".qkv"), {dim, dim, dim});
  const auto by_heads = [&](const Value& value) { return p.reshape(value, {0, N, heads, D}); };
  Value out = softmax_core(p, by_heads(qkv[0]), by_heads(qkv[1]), by_heads(qkv[2]), D, dim, N);
  if (p.has(name + ".lepe.weight")) out = p.add(out, p.grid_conv(qkv[2], name + ".lepe", layout));
  return p.linear(out, name + ".proj");
}

Value onnx_gated_softmax(OnnxParts& p, const Value& x, const std::string& name, std::int64_t dim, std::int64_t heads,
                         const Layout& layout) {
  const std::int64_t N = layout.grid[1] * layout.grid[2], D = dim / heads;
  const std::vector<Value> qkvo = p.split(p.linear(x, name + ".qkvo"), {dim, dim, dim, dim});
  const auto by_heads = [&](const Value& value) { return p.reshape(value, {0, N, heads, D}); };
  const auto turned = [&](const Value& value) { return p.rope(by_heads(value), layout, D, kRopeBase); };
  const Value core = softmax_core(p, turned(qkvo[0]), turned(qkvo[1]), by_heads(qkvo[2]), D, dim, N);
  const Value gated = p.multiply(p.add(core, p.grid_conv(qkvo[2], name + ".lepe", layout)), qkvo[3]);
  return p.linear(gated, name + ".proj");
}

}  // namespace mhla
