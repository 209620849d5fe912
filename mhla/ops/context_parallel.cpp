#include "mhla/ops/context_parallel.h"

#include <algorithm>
#include <numeric>

#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

// Lives as long as the graph; the group is the caller's.
struct SharedCall : torch::CustomClassHolder {
  SharedCall(const PhaseOptions& given, std::vector<std::int64_t> rows, ContextGroup& with)
      : options(given), counts(std::move(rows)), group(with) {}
  PhaseOptions options;
  std::vector<std::int64_t> counts;  // blocks of every process
  ContextGroup& group;
};

struct SharedAttention : torch::autograd::Function<SharedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& mix, const Optional<at::Tensor>& q_den,
                            const Optional<at::Tensor>& k_den, const c10::intrusive_ptr<SharedCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const AttentionInputs in{q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), {}};
    const at::Tensor summaries = call->group.gather(phase_summaries(in, call->options), call->counts);
    context->save_for_backward({in.q, in.k, in.v, in.mix, in.q_den, in.k_den, summaries});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return phase_output(summaries, in, call->options);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dout) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const AttentionInputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], {}};
    const auto call = c10::static_intrusive_pointer_cast<SharedCall>(context->saved_data["call"].toCapsule());
    Wanted wanted{};
    std::size_t edge = 0;  // inputs that are not given have none
    const auto inputs = differentiable(in);
    for (std::size_t i = 0; i < kGradients; ++i) {
      if (inputs[i]->defined()) wanted[i] = context->needs_input_grad(edge++);
    }
    const PhaseQueryGrads queries =
        phase_queries(dout[0], saved[6], in, call->options, {wanted[0], wanted[3], wanted[4]});
    PhaseKeyGrads keys;
    if (wanted[1] || wanted[2] || wanted[5]) {
      const at::Tensor dP = call->group.gather(queries.dP, call->counts);
      keys = phase_keys(dout[0], dP, queries.terms, in, call->options, {wanted[1], wanted[2], wanted[5]});
    }
    return {queries.dq, keys.dk, keys.dv, queries.dmix, queries.dq_den, keys.dk_den, {}};
  }
};

struct GroupCall : torch::CustomClassHolder {
  explicit GroupCall(ContextGroup& with, std::vector<std::int64_t> of_processes = {})
      : group(with), tokens(std::move(of_processes)) {}
  ContextGroup& group;
  std::vector<std::int64_t> tokens;  // of every process
};

// Pieces for all processes, one after the other, as one tensor; what comes back, in the given shapes.
std::vector<at::Tensor> exchanged(const std::vector<at::Tensor>& pieces,
                                  const std::vector<std::vector<std::int64_t>>& shapes, ContextGroup& group) {
  std::vector<std::int64_t> send, receive;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& piece : pieces) flat.push_back(piece.reshape({-1})), send.push_back(piece.numel());
  for (const std::vector<std::int64_t>& shape : shapes) receive.push_back(c10::multiply_integers(shape));
  std::vector<at::Tensor> parts = group.exchange(at::cat(flat), send, receive).split_with_sizes(receive);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].view(shapes[i]);
  return parts;
}

// [B, n, H, D] of this process's tokens to [B, N, H / P, D] of its heads, process by process.
at::Tensor to_heads(const at::Tensor& x, const GroupCall& call) {
  const std::int64_t P = call.group.size(), heads = x.size(2) / P;
  std::vector<at::Tensor> pieces;
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::int64_t rank = 0; rank < P; ++rank) {
    pieces.push_back(x.narrow(2, rank * heads, heads));
    shapes.push_back({x.size(0), call.tokens[static_cast<std::size_t>(rank)], heads, x.size(3)});
  }
  return at::cat(exchanged(pieces, shapes, call.group), 1);
}

// And back.
at::Tensor to_tokens(const at::Tensor& x, const GroupCall& call) {
  const std::vector<at::Tensor> pieces = x.split_with_sizes(call.tokens, 1);
  const std::vector<std::int64_t> shape{x.size(0), call.tokens[static_cast<std::size_t>(call.group.rank())], x.size(2),
                                        x.size(3)};
  return at::cat(exchanged(pieces, std::vector(pieces.size(), shape), call.group), 2);
}

struct HeadsForTokens : torch::autograd::Function<HeadsForTokens> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool heads,
                            const c10::intrusive_ptr<GroupCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["heads"] = heads;
    return heads ? to_heads(x, *call) : to_tokens(x, *call);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const auto call = c10::static_intrusive_pointer_cast<GroupCall>(context->saved_data["call"].toCapsule());
    return {context->saved_data["heads"].toBool() ? to_tokens(dy[0], *call) : to_heads(dy[0], *call), {}, {}};
  }
};

// Tokens of all processes, one process after the other, as numbers of the whole sequence; empty: they are in order.
at::Tensor order_of(const BlockMap& map, const std::vector<BlockRange>& ranges) {
  std::vector<std::int64_t> order;
  for (const BlockRange& range : ranges) {
    const std::vector<std::int64_t> held = tokens_of_blocks(map, range.first, range.blocks);
    order.insert(order.end(), held.begin(), held.end());
  }
  if (std::is_sorted(order.begin(), order.end())) return {};
  return at::tensor(order, at::kLong);
}

at::Tensor by_heads(const AttentionInputs& in, const PhaseOptions& o, const std::vector<BlockRange>& ranges,
                    ContextGroup& group) {
  const BlockMap map(o.layout, o.tokens);
  std::vector<std::int64_t> tokens;
  for (const BlockRange& range : ranges)
    tokens.push_back(static_cast<std::int64_t>(tokens_of_blocks(map, range.first, range.blocks).size()));
  const auto call = c10::make_intrusive<GroupCall>(group, tokens);
  const at::Tensor order = order_of(map, ranges);
  const at::Tensor places = order.defined() ? order.argsort().to(in.q.device()) : at::Tensor();
  const auto whole = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    const at::Tensor mine = HeadsForTokens::apply(x, /*heads=*/true, call);
    return places.defined() ? mine.index_select(1, places) : mine;
  };
  at::Tensor mix = in.mix;
  if (mix.dim() == 3 && mix.size(0) > 1) {
    const std::int64_t heads = mix.size(0) / group.size();
    mix = mix.narrow(0, group.rank() * heads, heads);
  }
  const AttentionInputs mine{whole(in.q), whole(in.k), whole(in.v), mix, whole(in.q_den), whole(in.k_den), {}};
  at::Tensor out;
  if (o.causal) {
    out = chunkwise(mine, {.chunk = o.layout.block_size,
                           .feature_map = o.feature_map,
                           .normalizer = o.normalizer,
                           .eps = o.eps,
                           .scale = o.scale});
  } else {
    out = bidirectional(mine, {.layout = o.layout,
                               .feature_map = o.feature_map,
                               .normalizer = o.normalizer,
                               .eps = o.eps,
                               .scale = o.scale.value_or(1.0)});
  }
  if (order.defined()) out = out.index_select(1, order.to(out.device()));
  return HeadsForTokens::apply(out, /*heads=*/false, call);
}

// What process r has as `own` goes to process r + `step`; zeros where none comes from.
at::Tensor shifted(const at::Tensor& own, ContextGroup& group, std::int64_t step) {
  const std::int64_t P = group.size(), from = group.rank() - step, numbers = own.numel();
  std::vector<std::int64_t> send(static_cast<std::size_t>(P), 0), receive(send);
  const auto place = [P](std::int64_t rank) { return static_cast<std::size_t>((rank + P) % P); };  // a ring, cut below
  send[place(group.rank() + step)] = numbers, receive[place(from)] = numbers;
  const at::Tensor theirs = group.exchange(own.reshape({-1}), send, receive).view(own.sizes());
  return from >= 0 && from < P ? theirs : at::zeros_like(theirs);
}

at::Tensor first_rows(const at::Tensor& x, std::int64_t count) { return x.narrow(1, 0, count); }
at::Tensor last_rows(const at::Tensor& x, std::int64_t count) { return x.narrow(1, x.size(1) - count, count); }

struct RowsBefore : torch::autograd::Function<RowsBefore> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t count,
                            const c10::intrusive_ptr<GroupCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["tokens"] = x.size(1);
    return shifted(last_rows(x, count), call->group, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const auto call = c10::static_intrusive_pointer_cast<GroupCall>(context->saved_data["call"].toCapsule());
    const at::Tensor tail = shifted(dy[0], call->group, -1);
    const std::int64_t before = context->saved_data["tokens"].toInt() - tail.size(1);
    return {at::constant_pad_nd(tail, {0, 0, before, 0}), {}, {}};
  }
};

struct RowsAround : torch::autograd::Function<RowsAround> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t count,
                            const c10::intrusive_ptr<GroupCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["count"] = count;
    return at::cat({shifted(last_rows(x, count), call->group, 1), x, shifted(first_rows(x, count), call->group, -1)},
                   1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const auto call = c10::static_intrusive_pointer_cast<GroupCall>(context->saved_data["call"].toCapsule());
    const std::int64_t count = context->saved_data["count"].toInt();
    at::Tensor dx = dy[0].narrow(1, count, dy[0].size(1) - 2 * count).clone();
    last_rows(dx, count).add_(shifted(first_rows(dy[0], count), call->group, -1));  // read by the process after
    first_rows(dx, count).add_(shifted(last_rows(dy[0], count), call->group, 1));
    return {dx, {}, {}};
  }
};

struct AllRows : torch::autograd::Function<AllRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<GroupCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return call->group.gather(x.transpose(0, 1).contiguous(), call->tokens).transpose(0, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const auto call = c10::static_intrusive_pointer_cast<GroupCall>(context->saved_data["call"].toCapsule());
    const auto me = static_cast<std::size_t>(call->group.rank());
    const std::int64_t first =
        std::accumulate(call->tokens.begin(), call->tokens.begin() + call->group.rank(), std::int64_t{0});
    return {dy[0].narrow(1, first, call->tokens[me]) * static_cast<double>(call->group.size()), {}};
  }
};

}  // namespace

TokenRange tokens_of_rank(const Layout& layout, std::int64_t tokens, std::int64_t size, std::int64_t rank) {
  const BlockRange range = blocks_of_rank(layout, tokens, size, rank);
  const std::vector<std::int64_t> held = tokens_of_blocks(BlockMap(layout, tokens), range.first, range.blocks);
  const auto count = static_cast<std::int64_t>(held.size());
  if (held.back() - held.front() + 1 != count)
    fail("tokens_of_rank: ", size, " processes for ", describe(layout),
         ", expected at most as many as blocks along its first axis");
  return {held.front(), count};
}

at::Tensor shared_attention(const AttentionInputs& in, PhaseOptions options, ContextGroup& group, ContextMethod asked) {
  constexpr const char* kEntry = "shared_attention";
  if (in.cu_seqlens.defined()) fail(kEntry, ": cu_seqlens is given: packed sequences cannot be cut between processes");
  std::vector<BlockRange> ranges;
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    ranges.push_back(blocks_of_rank(options.layout, options.tokens, group.size(), rank));
    counts.push_back(ranges.back().blocks);
  }
  const ContextShape shape{.B = in.q.size(0),
                           .H = in.q.size(2),
                           .Hkv = in.k.size(2),
                           .D = in.q.size(3),
                           .E = in.v.size(3),
                           .mix_per_head = in.mix.dim() == 3 && in.mix.size(0) > 1,
                           .den = in.q_den.defined(),
                           .element = static_cast<std::int64_t>(in.q.element_size()),
                           .on_cpu = in.q.is_cpu()};
  if (plan_context(shape, options, group.size(), asked).method == ContextMethod::kHeads)
    return by_heads(in, options, ranges, group);
  const BlockRange& mine = ranges[static_cast<std::size_t>(group.rank())];
  options.first_block = mine.first, options.local_blocks = mine.blocks;
  return SharedAttention::apply(in.q, in.k, in.v, wide_mix(in.mix), maybe(in.q_den), maybe(in.k_den),
                                c10::make_intrusive<SharedCall>(options, counts, group));
}

namespace {

void expect_rows(const char* entry, const at::Tensor& x, std::int64_t count) {
  if (x.dim() != 3 || x.size(1) < count)
    fail(entry, ": x has shape ", c10::str(x.sizes()), ", expected [B, n, C] with n of at least ", count);
}

}  // namespace

at::Tensor rows_before(const at::Tensor& x, std::int64_t count, ContextGroup& group) {
  expect_rows("rows_before", x, count);
  return RowsBefore::apply(x, count, c10::make_intrusive<GroupCall>(group));
}

at::Tensor rows_around(const at::Tensor& x, std::int64_t count, ContextGroup& group) {
  expect_rows("rows_around", x, count);
  return RowsAround::apply(x, count, c10::make_intrusive<GroupCall>(group));
}

at::Tensor shared_grid_conv(const GridConvInputs& in, std::vector<std::int64_t> grid, ContextGroup& group) {
  const std::int64_t slice = c10::multiply_integers(grid.begin() + 1, grid.end()), halo = in.weight.size(2) / 2;
  grid[0] = in.v.size(1) / slice + 2 * halo;
  const at::Tensor y = grid_conv({rows_around(in.v, halo * slice, group), in.weight, in.bias, {}, {}}, grid)
                           .narrow(1, halo * slice, in.v.size(1));
  if (!in.base.defined()) return y;
  return y + (in.gate.defined() ? in.base * at::silu(in.gate) : in.base);
}

at::Tensor all_rows(const at::Tensor& x, const std::vector<std::int64_t>& counts, ContextGroup& group) {
  return AllRows::apply(x, c10::make_intrusive<GroupCall>(group, counts));
}

}  // namespace mhla::ops
