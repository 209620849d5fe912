// torch.ops.mhla.bidirectional and its backward. The layout crosses as block_size (1D), or grid and blocks (2D, 3D).
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kBidirectionalSchema =
    "bidirectional(Tensor q, Tensor k, Tensor v, Tensor mix, int block_size=0, int[] grid=[], int[] blocks=[], "
    "Tensor? q_den=None, Tensor? k_den=None, Tensor? cu_seqlens=None, str feature_map=\"relu_eps\", "
    "str normalizer=\"paper\", float eps=1e-6, float scale=1.0) -> Tensor";
constexpr const char* kBidirectionalBackwardSchema =
    "bidirectional_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor mix, int block_size, int[] grid, "
    "int[] blocks, Tensor? q_den, Tensor? k_den, Tensor? cu_seqlens, str feature_map, str normalizer, float eps, "
    "float scale, bool[6] wanted) -> Tensor[]";

using MaybeTensor = const Optional<at::Tensor>&;

// The schemas' arguments, spelled once for both.
using BidirectionalForward = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        std::int64_t, Ints, Ints, MaybeTensor, MaybeTensor, MaybeTensor, Text, Text,
                                        double, double);
using BidirectionalBackward = std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                      const at::Tensor&, const at::Tensor&, std::int64_t, Ints, Ints,
                                                      MaybeTensor, MaybeTensor, MaybeTensor, Text, Text, double, double,
                                                      Wanted);

// A layout as the schemas spell it.
struct LayoutArguments {
  explicit LayoutArguments(const Layout& layout) : block_size(layout.rank == 1 ? layout.block_size : 0) {
    if (layout.rank < 2) return;
    grid.assign(layout.grid.end() - layout.rank, layout.grid.end());
    blocks.assign(layout.blocks.end() - layout.rank, layout.blocks.end());
  }
  std::int64_t block_size;
  std::vector<std::int64_t> grid, blocks;
};

struct Bidirectional {
  using Options = BidirectionalOptions;
  using Params = BidirectionalParams;
  using Grads = BidirectionalGrads;
  static constexpr const char *kOp = "mhla::bidirectional", *kBackwardOp = "mhla::bidirectional_backward";
  static constexpr const char* kForwardEntry = "bidirectional_forward";
  static constexpr const char* kBackwardEntry = "bidirectional_backward";
  static constexpr auto forward = bidirectional_forward;
  static constexpr auto backward = bidirectional_backward;
  static constexpr auto forward_workspace = bidirectional_forward_workspace;
  static constexpr auto backward_workspace = bidirectional_backward_workspace;
  static constexpr auto kept = bidirectional_kept;

  static Options options(std::int64_t block_size, Ints grid, Ints blocks, Text feature_map, Text normalizer, double eps,
                         double scale) {
    return {.layout = layout_of(block_size, grid, blocks, kForwardEntry),
            .feature_map = parse_feature_map(view_of(feature_map)),
            .normalizer = parse_normalizer(view_of(normalizer)),
            .eps = eps,
            .scale = scale};
  }
  static Params params(const Options& options) {
    Params params;
    params.layout = options.layout;
    params.feature_map = options.feature_map;
    params.normalizer = options.normalizer;
    params.eps = options.eps;
    params.scale = options.scale;
    return params;
  }
  static at::Tensor call(const AttentionInputs& in, const Options& o) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("mhla::bidirectional", "").typed<BidirectionalForward>();
    const LayoutArguments layout(o.layout);
    return op.call(in.q, in.k, in.v, in.mix, layout.block_size, layout.grid, layout.blocks, maybe(in.q_den),
                   maybe(in.k_den), maybe(in.cu_seqlens), text_of(name_of(o.feature_map)),
                   text_of(name_of(o.normalizer)), o.eps, o.scale);
  }
  static std::vector<at::Tensor> call_backward(const at::Tensor& dout, const AttentionInputs& in, const Options& o,
                                               const Wanted& wanted) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mhla::bidirectional_backward", "")
                               .typed<BidirectionalBackward>();
    const LayoutArguments layout(o.layout);
    return op.call(dout, in.q, in.k, in.v, in.mix, layout.block_size, layout.grid, layout.blocks, maybe(in.q_den),
                   maybe(in.k_den), maybe(in.cu_seqlens), text_of(name_of(o.feature_map)),
                   text_of(name_of(o.normalizer)), o.eps, o.scale, wanted);
  }
};

// q, k and v as they lie in a projection [B, N, H D + Hkv D + Hkv E].
struct Slices {
  at::Tensor q, k, v;
  Slices(const at::Tensor& qkv, const PackedHeads& heads) {
    const std::int64_t q_width = heads.heads * heads.head_dim, k_width = heads.kv_heads * heads.head_dim;
    q = qkv.narrow(-1, 0, q_width).unflatten(-1, {heads.heads, heads.head_dim});
    k = qkv.narrow(-1, q_width, k_width).unflatten(-1, {heads.kv_heads, heads.head_dim});
    v = qkv.narrow(-1, q_width + k_width, heads.kv_heads * heads.value_dim)
            .unflatten(-1, {heads.kv_heads, heads.value_dim});
  }
};

// The gradients of q, k and v are written side by side, as the gradient of the projection.
struct PackedFunction : torch::autograd::Function<PackedFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& qkv,
                                                const at::Tensor& given_mix, const PackedHeads& heads,
                                                const BidirectionalOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    RECORD_USER_SCOPE("mhla::bidirectional_packed");
    const at::Tensor mix = wide_mix(given_mix);
    context->set_materialize_grads(false);  // often nothing else reads v
    context->saved_data["heads"] =
        std::vector<std::int64_t>{heads.heads, heads.kv_heads, heads.head_dim, heads.value_dim};
    context->saved_data["options"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedOptions<Bidirectional>>(options));
    const Slices in(qkv, heads);
    at::Tensor kept;
    const at::Tensor out = forward_keeping<Bidirectional>({in.q, in.k, in.v, mix, {}, {}, {}}, options,
                                                          keeps_summaries() ? &kept : nullptr);
    context->save_for_backward({qkv, mix, kept});
    return {out, in.v};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    if (at::GradMode::is_enabled()) refuse_second_derivative(Bidirectional::kBackwardEntry);
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const std::vector<std::int64_t> sizes = context->saved_data["heads"].toIntVector();
    const PackedHeads heads{sizes[0], sizes[1], sizes[2], sizes[3]};
    const auto options =
        c10::static_intrusive_pointer_cast<SavedOptions<Bidirectional>>(context->saved_data["options"].toCapsule());
    const Slices in(saved[0], heads);
    torch::autograd::variable_list gradients(4);  // one per argument of forward
    at::Tensor& dqkv = gradients[0] = at::empty(saved[0].sizes(), saved[0].options());
    const Slices to(dqkv, heads);
    Wanted wanted{true, true, true, context->needs_input_grad(1)};
    std::vector<at::Tensor> into{to.q, to.k, to.v};
    if (wanted[3]) into.push_back(gradients[1] = at::empty(saved[1].sizes(), saved[1].options()));
    if (given[0].defined()) {
      backward_into<Bidirectional>(given[0], {in.q, in.k, in.v, saved[1], {}, {}, {}}, options->options, wanted, into,
                                   saved[2]);
    } else {
      for (const at::Tensor& one : into) one.zero_();
    }
    if (given[1].defined()) to.v.add_(given[1]);
    return gradients;
  }
};

// The function behind a dispatch key: the schema's arguments, gathered.
template <at::Tensor (*run)(const AttentionInputs&, const BidirectionalOptions&)>
at::Tensor entry(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mix,
                 std::int64_t block_size, Ints grid, Ints blocks, MaybeTensor q_den, MaybeTensor k_den,
                 MaybeTensor cu_seqlens, Text feature_map, Text normalizer, double eps, double scale) {
  return run({q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), value_or_undefined(cu_seqlens)},
             Bidirectional::options(block_size, grid, blocks, feature_map, normalizer, eps, scale));
}

template <std::vector<at::Tensor> (*run)(const at::Tensor&, const AttentionInputs&, const BidirectionalOptions&,
                                         const Wanted&)>
std::vector<at::Tensor> backward_entry(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const at::Tensor& mix, std::int64_t block_size, Ints grid,
                                       Ints blocks, MaybeTensor q_den, MaybeTensor k_den, MaybeTensor cu_seqlens,
                                       Text feature_map, Text normalizer, double eps, double scale, Wanted wanted) {
  return run(dout, {q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), value_or_undefined(cu_seqlens)},
             Bidirectional::options(block_size, grid, blocks, feature_map, normalizer, eps, scale), wanted);
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(kBidirectionalSchema);
  m.def(std::string(kBidirectionalSchema).insert(std::string("bidirectional").size(), "_shape").c_str());
  m.def(kBidirectionalBackwardSchema);
}

template <class Library>
void implement_bidirectional(Library& m) {
  m.impl("bidirectional", entry<forward_kernel<Bidirectional>>);
  m.impl("bidirectional_backward", backward_entry<backward_kernel<Bidirectional>>);
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) { implement_bidirectional(m); }
TORCH_LIBRARY_IMPL(mhla, CUDA, m) { implement_bidirectional(m); }
TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("bidirectional", entry<forward_meta<Bidirectional>>);
  m.impl("bidirectional_shape", entry<forward_meta<Bidirectional>>);  // for who answers in its place
  m.impl("bidirectional_backward", backward_entry<backward_meta<Bidirectional>>);
}
TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("bidirectional", entry<forward_autograd<Bidirectional>>);
  m.impl("bidirectional_backward", backward_entry<backward_autograd<Bidirectional>>);
}
TORCH_LIBRARY_IMPL(mhla, AutocastCPU, m) { m.impl("bidirectional", entry<forward_autocast<Bidirectional>>); }
TORCH_LIBRARY_IMPL(mhla, Autocast, m) { m.impl("bidirectional", entry<forward_autocast<Bidirectional>>); }

}  // namespace

at::Tensor bidirectional(const AttentionInputs& inputs, const BidirectionalOptions& options) {
  return Bidirectional::call(inputs, options);
}

std::pair<at::Tensor, at::Tensor> bidirectional_packed(const at::Tensor& qkv, const at::Tensor& mix,
                                                       const PackedHeads& heads, const BidirectionalOptions& options) {
  const std::int64_t width = (heads.heads + heads.kv_heads) * heads.head_dim + heads.kv_heads * heads.value_dim;
  if (qkv.dim() != 3 || qkv.size(2) != width)
    fail(Bidirectional::kForwardEntry, ": qkv has shape ", c10::str(qkv.sizes()), ", expected [B, N, ", width, "]");
  refuse_forward_mode(std::array{&qkv, &mix}, Bidirectional::kForwardEntry);
  if (at::GradMode::is_enabled() && (qkv.requires_grad() || mix.requires_grad())) {
    const torch::autograd::variable_list both = PackedFunction::apply(qkv, mix, heads, options);
    return {both[0], both[1]};
  }
  const Slices in(qkv, heads);
  return {Bidirectional::call({in.q, in.k, in.v, mix, {}, {}, {}}, options), in.v};
}

}  // namespace mhla::ops
