#include "mhla/models/lm/lm.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/models/lm/lm_attention.h"
#include "mhla/models/lm/lm_plan.h"
#include "mhla/models/recompute.h"
#include "mhla/modules/exact.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

constexpr const char* kLmEntry = "LanguageModel";

}  // namespace

torch::Tensor LmStream::norm(RmsNorm& norm) {
  if (!branch.defined()) return norm(x);
  torch::Tensor normed;
  std::tie(x, normed) = norm->joined(x, branch);
  branch = torch::Tensor();
  return normed;
}

LmBlockImpl::LmBlockImpl(const LmConfig& c, std::int64_t mlp_width, const std::shared_ptr<RopeCache>& rope) {
  attn_norm_ = register_module("attn_norm", RmsNorm(c.dim, c.norm_eps));
  attn_ = make_lm_attention(c, rope);
  register_module("attn", attn_);
  if (!has_mlp(c.attention)) return;
  mlp_norm_ = register_module("mlp_norm", RmsNorm(c.dim, c.norm_eps));
  mlp_ = register_module("mlp", Swiglu(c.dim, mlp_width));
}

torch::Tensor LmBlockImpl::behind(const torch::Tensor& x, const torch::Tensor& attended) {
  LmStream stream{x, attended};
  if (!mlp_.is_empty()) stream.branch = mlp_(stream.norm(mlp_norm_));
  return stream.settled();
}

LmStream LmBlockImpl::forward(LmStream stream, const torch::Tensor& cu_seqlens) {
  stream.branch = attn_->forward(stream.norm(attn_norm_), cu_seqlens);
  if (!mlp_.is_empty()) stream.branch = mlp_(stream.norm(mlp_norm_));
  return stream;
}

torch::Tensor LmBlockImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) {
  auto* const mhla = attn_->as<MhlaAttentionImpl>();
  if (mhla == nullptr || x.size(1) != 1) return behind(x, attn_->stream(before(x), state, positions));
  mhla->expect_room(state, 1);  // before a convolution moves on
  const std::int64_t furthest = *std::max_element(state.positions.begin(), state.positions.end());
  const MhlaAttentionImpl::StreamStep step = open_step(x, mhla->stream_table(positions, furthest + 1), &state);
  MhlaAttentionImpl::run_step(step, state);
  return close_step(x, step);
}

MhlaAttentionImpl::StreamStep LmBlockImpl::open_step(const torch::Tensor& x, const RopeTable& table,
                                                     AttentionState* maybe_state) {
  auto* const mhla = attn_->as<MhlaAttentionImpl>();
  if (mhla->takes_few_rows(x, attn_norm_)) return mhla->open_few_rows(x, attn_norm_, table);
  return mhla->open_step(before(x), table, maybe_state);
}

torch::Tensor LmBlockImpl::close_step(const torch::Tensor& x, const MhlaAttentionImpl::StreamStep& step) {
  auto* const mhla = attn_->as<MhlaAttentionImpl>();
  if (!step.gate.defined()) return behind(x, mhla->close_step(step));
  const torch::Tensor y = mhla->close_few_rows(x, step);
  if (mlp_.is_empty()) return y;
  const torch::Tensor both = mlp_->few_rows(y, mlp_norm_);
  return both.defined() ? both : y + mlp_(mlp_norm_(y));
}

std::int64_t LmState::bytes() const {
  std::int64_t sum = 0;
  for (const AttentionState& layer : layers) sum += layer.bytes();
  return sum;
}

LmState select(const LmState& state, const std::vector<std::int64_t>& sequences) {
  LmState chosen;
  for (const AttentionState& layer : state.layers) chosen.layers.push_back(select(layer, sequences));
  return chosen;
}

LmState join(std::vector<LmState> states) {
  if (states.empty()) fail("join: no states are given, expected at least one");
  LmState all;
  for (std::size_t layer = 0; layer < states[0].layers.size(); ++layer) {
    std::vector<AttentionState> parts;
    for (LmState& state : states) {
      if (state.layers.size() != states[0].layers.size())
        fail("join: states of ", state.layers.size(), " and ", states[0].layers.size(),
             " layers, expected one model's");
      parts.push_back(std::move(state.layers[layer]));
    }
    all.layers.push_back(join(std::move(parts)));
  }
  return all;
}

LanguageModelImpl::LanguageModelImpl(const LmConfig& given) : config_(given) {
  check(config_);
  const LmConfig& c = config_;
  const LmPlan plan = plan_of(c);
  const auto body = std::make_shared<torch::nn::Module>();
  embeddings_ = torch::nn::Embedding(c.vocab, c.dim);
  body->register_module("embeddings", embeddings_);
  const std::shared_ptr<RopeCache> rope = make_rope_cache(c);
  torch::nn::ModuleList layers;
  for (std::int64_t index = 0; index < plan.depth; ++index) {
    blocks_.emplace_back(c, plan.width, rope);
    layers->push_back(blocks_.back());
  }
  body->register_module("layers", layers);
  norm_ = RmsNorm(c.dim, c.norm_eps);
  body->register_module("norm", norm_);
  register_module("model", body);
  if (!c.tied)
    head_ = register_module("lm_head", torch::nn::Linear(torch::nn::LinearOptions(c.dim, c.vocab).bias(false)));
  init_linears(*this);
  const torch::NoGradGuard no_gradient;
  embeddings_->weight.normal_(0.0, 0.02);
}

const torch::Tensor& LanguageModelImpl::head() const { return config_.tied ? embeddings_->weight : head_->weight; }

torch::Tensor LanguageModelImpl::logits(const torch::Tensor& hidden) const {
  const ExactLayers exact(exact_);
  return apply_linear(hidden, head());
}

void LanguageModelImpl::set_exact(bool on) {
  const LmConfig& c = config_;
  if (on && c.attention != "mhla" && c.attention != "linear")
    fail(kLmEntry, "::set_exact: attention is ", c.attention, ", expected mhla or linear");
  if (on && c.short_conv != 0) fail(kLmEntry, "::set_exact: short_conv is ", c.short_conv, ", expected 0");
  if (on && !is_fused(parse_features(c.features)))
    fail(kLmEntry, "::set_exact: features is ", c.features, ", expected one of ", feature_map_list());
  if (on && (device().is_cuda() || embeddings_->weight.scalar_type() != torch::kFloat))
    fail(kLmEntry, "::set_exact: weights are ", c10::str(embeddings_->weight.scalar_type()), " on ", device().str(),
         ", expected f32 on the CPU");
  exact_ = on;
}

void LanguageModelImpl::expect_tokens(const char* entry, const torch::Tensor& tokens, std::int64_t axes) const {
  if (tokens.dim() != axes || tokens.scalar_type() != torch::kLong)
    fail(kLmEntry, "::", entry, ": tokens are ", c10::str(tokens.scalar_type()), " of shape ", c10::str(tokens.sizes()),
         ", expected int64 of shape ", axes == 1 ? "[B]" : "[B, N]");
  if (tokens.is_cuda() || tokens.numel() == 0) return;  // a device would have to be waited for
  const std::int64_t least = tokens.min().item<std::int64_t>(), most = tokens.max().item<std::int64_t>();
  if (least < 0 || most >= config_.vocab)
    fail(kLmEntry, "::", entry, ": a token is ", least < 0 ? least : most, ", expected 0 to ", config_.vocab - 1);
}

torch::Tensor LanguageModelImpl::embed(const torch::Tensor& tokens) const {
  const torch::Tensor x = torch::embedding(embeddings_->weight, tokens);
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);  // what blocks add up stays f32
}

void LanguageModelImpl::set_length_policy(LengthPolicy policy) {
  policy_ = policy;
  for (LmBlock& block : blocks_) {
    if (config_.attention == "mhla")
      mhla_of(block)->set_length(config_.chunk,
                                 policy == LengthPolicy::kExtend ? BeyondMix::kExtend : BeyondMix::kError);
  }
}

LengthPlan LanguageModelImpl::plan(std::int64_t tokens) const {
  std::int64_t rows = (config_.context + config_.chunk - 1) / config_.chunk;
  if (config_.attention != "mhla" && policy_ != LengthPolicy::kTruncateLeft)
    rows = std::max(rows, (tokens + config_.chunk - 1) / config_.chunk);
  return plan_length(rows, config_.chunk, tokens, policy_);
}

std::string LanguageModelImpl::describe_length(std::int64_t tokens) const {
  const LengthPlan length = plan(tokens);
  if (config_.attention == "mhla") return describe(length);
  if (policy_ != LengthPolicy::kTruncateLeft) return "any length";
  return str(name_of(policy_), ": tokens ", length.first, " to ", length.first + length.tokens - 1);
}

torch::Tensor LanguageModelImpl::hidden(const torch::Tensor& given, const torch::Tensor& cu_seqlens) {
  expect_tokens("hidden", given, 2);
  torch::Tensor tokens = given;
  std::int64_t chunk = config_.chunk;
  if (!cu_seqlens.defined()) {
    const LengthPlan length = plan(given.size(1));
    tokens = given.narrow(1, length.first, length.tokens), chunk = length.chunk;
  } else if (needs_whole_length(policy_)) {
    fail(kLmEntry, "::hidden: cu_seqlens with length policy ", name_of(policy_), ", expected error or extend");
  }
  const auto set_chunk = [&](std::int64_t size) {
    for (LmBlock& block : blocks_) {
      if (size != config_.chunk || chunk != config_.chunk)
        mhla_of(block)->set_length(size, mhla_of(block)->options().beyond_mix);
    }
  };
  const struct Restore {
    const std::function<void()> done;
    ~Restore() { done(); }
  } restore{[&] { set_chunk(config_.chunk); }};
  set_chunk(chunk);
  const ExactLayers exact(exact_);
  LmStream stream{embed(tokens), {}};
  for (LmBlock& block : blocks_) {
    const auto body = [part = block.ptr(), cu_seqlens](const torch::Tensor& x) {
      return part->forward({x, {}}, cu_seqlens).settled();
    };
    stream = recompute_ ? LmStream{recomputed(body, stream.x), {}} : block->forward(std::move(stream), cu_seqlens);
  }
  return stream.norm(norm_);
}

LmState LanguageModelImpl::begin(std::int64_t batch) const {
  if (needs_whole_length(policy_))
    fail(kLmEntry, "::begin: length policy ", name_of(policy_),
         " needs the whole length before the first token, expected error or extend in streaming");
  LmState state;
  for (const LmBlock& block : blocks_) state.layers.push_back(block->attention()->begin(batch));
  return state;
}

void LanguageModelImpl::expect_step(const torch::Tensor& tokens, const LmState& state) const {
  expect_tokens("stream", tokens, 2);
  if (state.layers.size() != blocks_.size())
    fail(kLmEntry, "::stream: the state has ", state.layers.size(), " layers, expected ", blocks_.size());
  if (tokens.size(0) != state.batch())
    fail(kLmEntry, "::stream: tokens of ", tokens.size(0), " sequences, expected those of ", state.batch());
}

torch::Tensor LanguageModelImpl::stream(const torch::Tensor& tokens, LmState& state) {
  const torch::NoGradGuard no_gradient;
  expect_step(tokens, state);
  const torch::Tensor positions = next_positions(state.positions(), tokens.size(1), tokens.device());
  const ExactLayers exact(exact_);
  torch::Tensor x = embed(tokens);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    x = blocks_[layer]->stream(x, state.layers[layer], positions);
  return norm_(x);
}

torch::Tensor LanguageModelImpl::prefill(const torch::Tensor& tokens, LmState& state, std::int64_t piece) {
  expect_tokens("prefill", tokens, 2);
  if (tokens.size(1) == 0) fail(kLmEntry, "::prefill: no tokens, expected at least one");
  if (piece < 1) fail(kLmEntry, "::prefill: piece is ", piece, ", expected at least 1");
  const torch::NoGradGuard no_gradient;
  torch::Tensor last;
  for (std::int64_t first = 0; first < tokens.size(1); first += piece)
    last = stream(tokens.narrow(1, first, std::min(piece, tokens.size(1) - first)), state);
  return logits(last.select(1, last.size(1) - 1));
}

torch::Tensor LanguageModelImpl::decode(const torch::Tensor& tokens, LmState& state) {
  expect_tokens("decode", tokens, 1);
  const torch::NoGradGuard no_gradient;
  return logits(stream(tokens.unsqueeze(1), state).select(1, 0));
}

void LanguageModelImpl::constrain() {
  for (LmBlock& block : blocks_) block->attention()->constrain();
}

void LanguageModelImpl::cast(torch::ScalarType dtype) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    const bool mix = name.size() > 4 && name.compare(name.size() - 4, 4, ".mix") == 0;
    if (!mix) item.value().set_data(item.value().to(dtype));
  }
}

double LanguageModelImpl::flops_per_token(std::int64_t tokens) const {
  std::int64_t weights = config_.vocab * config_.dim;  // of the head
  for (const LmBlock& block : blocks_) {
    for (const auto& item : block->named_parameters()) {
      if (item.value().dim() == 2 && item.key() != "attn.mix") weights += item.value().numel();
    }
  }
  double pairs = 0;  // multiplications and additions of one layer's attention
  const AnyAttention& attention = blocks_[0]->attention();
  if (const auto* mhla = mhla_of(blocks_[0]); mhla != nullptr) {  // fold and read a state, mix, pairs of a chunk
    const MhlaAttentionOptions& o = mhla->options();
    const auto state = static_cast<double>(o.heads * feature_size(o.features, o.head_dim) * o.value_dim);
    const double chunks = static_cast<double>(tokens) / static_cast<double>(o.chunk);
    pairs = state * (4.0 + (config_.attention == "mhla" ? chunks / static_cast<double>(o.chunk) : 0.0)) +
            static_cast<double>(o.chunk * o.heads * (o.head_dim + o.value_dim));
  } else if (config_.attention == "softmax") {
    pairs = 2.0 * static_cast<double>(tokens * config_.dim);  // half of all pairs, twice dim, two operations
  } else {
    pairs = 4.0 * static_cast<double>(attention->begin(1).tensors.at("scan").numel());
  }
  return 2.0 * static_cast<double>(weights) + static_cast<double>(blocks_.size()) * pairs;
}

}  // namespace mhla
