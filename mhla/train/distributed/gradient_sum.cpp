#include "mhla/train/distributed/gradient_sum.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "mhla/core/error.h"

namespace mhla::distributed {
namespace {

constexpr const char* kGradients = "gradients";

// A shared_ptr in LibTorch 1.13, an intrusive_ptr in later ones.
using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// The value of a leaf that has none is 0: -0 + 0 is 0, on one rank as on eight.
void add_to(const at::Tensor& sum, const at::Tensor& maybe_value) {
  if (maybe_value.defined())
    sum.add_(maybe_value);
  else
    sum.add_(0.0);
}

bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

struct GradientSum::State {
  // Gradients by parameter, then buffers; undefined where a parameter has none.
  using Values = std::vector<at::Tensor>;
  struct Branch {  // a finished part of the tree
    std::int64_t leaves = 0;
    Values values;
  };
  struct Bucket {
    std::vector<std::size_t> values;  // which
    Values views;                     // of `flat`, in their shapes
    at::Tensor flat;                  // padded to equal parts for the ranks
    at::Tensor theirs, mine;          // fixed tree: this rank's part of everybody's, and their sum
    Team::Pending pending;
    std::int64_t open = 0;  // gradients that backward still owes in this step
  };

  State(Team* maybe_team, std::vector<std::string> given_names, Values given_params, Values given_buffers,
        const GradientSumOptions& given)
      : team(maybe_team),
        options(given),
        names(std::move(given_names)),
        params(std::move(given_params)),
        buffers(std::move(given_buffers)),
        used(params.size() + buffers.size(), 0),
        expected(params.size(), 0),
        fired(params.size(), 0) {
    if (!is_power_of_two(options.leaves) || (options.fixed_tree && !is_power_of_two(ranks())))
      fail("train: ", options.leaves, " leaves on each of ", ranks(), " ranks, expected powers of two");
  }

  [[nodiscard]] int ranks() const { return team == nullptr ? 1 : team->size(); }
  [[nodiscard]] const at::Tensor& value_like(std::size_t i) const {
    return i < params.size() ? params[i] : buffers[i - params.size()];
  }
  [[nodiscard]] at::Tensor value(std::size_t i) const { return i < params.size() ? params[i].grad() : value_like(i); }

  void put_into_bucket(std::size_t i) {
    const at::Tensor& like = value_like(i);
    const auto bytes_in = [&](const Bucket& bucket) {
      std::int64_t bytes = 0;
      for (const std::size_t other : bucket.values) bytes += static_cast<std::int64_t>(value_like(other).nbytes());
      return bytes;
    };
    const bool fits = !buckets.empty() && buckets.size() > gradient_buckets &&
                      value_like(buckets.back().values.front()).scalar_type() == like.scalar_type() &&
                      bytes_in(buckets.back()) + static_cast<std::int64_t>(like.nbytes()) <= options.bucket_bytes;
    if (!fits) buckets.emplace_back();
    buckets.back().values.push_back(i);
  }

  // ---- A step

  void begin(std::int64_t of_passes) {
    passes = of_passes, microbatch = 0, next_bucket = 0, armed = false;
    branches.clear(), own.clear();
    held.assign(passes > 1 && options.leaves > 1 ? static_cast<std::size_t>(options.leaves) : 0, {});
    start_buffers.clear();
    for (const at::Tensor& buffer : buffers) start_buffers.push_back(buffer.clone());
    for (Bucket& bucket : buckets) {
      bucket.open = 0;
      for (const std::size_t i : bucket.values)
        if (i < params.size()) bucket.open += expected[i];
    }
  }

  [[nodiscard]] std::int64_t leaf() const { return microbatch % options.leaves; }
  [[nodiscard]] bool in_last_pass() const { return microbatch / options.leaves == passes - 1; }
  [[nodiscard]] bool at_last() const { return microbatch == passes * options.leaves - 1; }

  void before() {
    if (microbatch >= passes * options.leaves) fail("train: more microbatches than the step was begun with");
    if (options.leaves > 1) {
      const bool first_pass = microbatch < options.leaves;
      Values* mine = first_pass ? nullptr : &held[static_cast<std::size_t>(leaf())];
      for (std::size_t i = 0; i < params.size(); ++i)
        params[i].mutable_grad() = mine == nullptr ? at::Tensor() : std::exchange((*mine)[i], {});
      for (std::size_t i = 0; i < buffers.size(); ++i)
        buffers[i].copy_(mine == nullptr ? start_buffers[i] : (*mine)[params.size() + i]);
    }
    std::fill(fired.begin(), fired.end(), 0);
    armed = at_last() && agreed && options.overlap && team != nullptr;
  }

  Values take_values() {
    Values values;
    for (const at::Tensor& param : params) {
      values.push_back(param.grad());
      param.mutable_grad().reset();
    }
    for (const at::Tensor& buffer : buffers) values.push_back(buffer.clone());
    return values;
  }

  void after() {
    if (!in_last_pass()) {
      if (options.leaves > 1) held[static_cast<std::size_t>(leaf())] = take_values();
    } else if (!at_last()) {
      branches.push_back({1, take_values()});
      while (branches.size() > 1 && branches.back().leaves == branches[branches.size() - 2].leaves) merge_last_two();
    }
    ++microbatch;
  }

  void merge_last_two() {
    Branch right = std::move(branches.back());
    branches.pop_back();
    Branch& left = branches.back();
    left.leaves *= 2;
    for (std::size_t i = 0; i < left.values.size(); ++i) {
      at::Tensor &a = left.values[i], &b = right.values[i];
      if (!a.defined()) std::swap(a, b);
      if (a.defined() && a.is_floating_point()) add_to(a, b);
    }
  }

  // ---- Buckets

  void fired_for(std::size_t i) {
    ++fired[i];
    if (!armed) return;
    if (fired[i] > expected[i]) {
      surprised = i;  // said in finish(): an exception here would leave backward half done
      return;
    }
    --buckets[place[i]].open;
    // In one order on all ranks, whatever backward does first.
    while (next_bucket < gradient_buckets && buckets[next_bucket].open == 0) send(buckets[next_bucket++]);
  }

  void send(Bucket& bucket) {
    const at::NoGradGuard no_gradient;
    if (!bucket.flat.defined()) lay_out(bucket);
    for (std::size_t j = 0; j < bucket.values.size(); ++j) {
      const at::Tensor now = value(bucket.values[j]);
      if (now.defined())
        bucket.views[j].copy_(now);
      else
        bucket.views[j].zero_();
      // The last leaf with the smallest branch first: the tree.
      for (std::size_t k = branches.size(); k-- > 0;) add_to(bucket.views[j], branches[k].values[bucket.values[j]]);
    }
    if (team == nullptr) return;
    bucket.pending = options.fixed_tree ? team->start_all_to_all(bucket.theirs, bucket.flat, kGradients)
                                        : team->start_sum(bucket.flat, kGradients);
  }

  void lay_out(Bucket& bucket) {
    std::int64_t count = 0;
    for (const std::size_t i : bucket.values) count += value_like(i).numel();
    const std::int64_t part = (count + ranks() - 1) / ranks();
    bucket.flat = at::zeros({part * ranks()}, value_like(bucket.values.front()).options().requires_grad(false));
    if (options.fixed_tree) bucket.theirs = at::empty_like(bucket.flat);
    count = 0;
    for (const std::size_t i : bucket.values) {
      bucket.views.push_back(bucket.flat.narrow(0, count, value_like(i).numel()).view(value_like(i).sizes()));
      count += value_like(i).numel();
    }
  }

  // The first step shows which parameters have gradients, how often backward adds to each, and which buffers move.
  // Ranks agree on it, as one of them may have had no samples.
  void agree() {
    const at::Tensor seen = at::zeros({static_cast<std::int64_t>(2 * params.size() + buffers.size())}, at::kLong);
    auto* now = seen.data_ptr<std::int64_t>();
    const auto has_value = [&](std::size_t i) {
      return value(i).defined() || std::any_of(branches.begin(), branches.end(),
                                               [&](const Branch& branch) { return branch.values[i].defined(); });
    };
    for (std::size_t i = 0; i < params.size(); ++i) now[2 * i] = has_value(i) ? 1 : 0, now[2 * i + 1] = fired[i];
    for (std::size_t i = 0; i < buffers.size(); ++i)
      now[2 * params.size() + i] = buffers[i].is_floating_point() && !buffers[i].equal(start_buffers[i]) ? 1 : 0;
    if (team != nullptr) {
      at::Tensor shared = seen;
      team->max(shared, kGradients);
    }
    for (std::size_t i = 0; i < params.size(); ++i)
      used[i] = static_cast<char>(now[2 * i]), expected[i] = static_cast<int>(now[2 * i + 1]);
    for (std::size_t i = 0; i < buffers.size(); ++i)
      used[params.size() + i] = static_cast<char>(now[2 * params.size() + i]);
    buckets.clear(), gradient_buckets = 0;
    for (std::size_t i = params.size(); i-- > 0;)
      if (used[i] != 0) put_into_bucket(i);
    gradient_buckets = buckets.size();
    for (std::size_t i = params.size(); i < used.size(); ++i)
      if (used[i] != 0) put_into_bucket(i);
    place.assign(params.size(), 0);
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (const std::size_t i : buckets[b].values)
        if (i < params.size()) place[i] = b;
    agreed = true;
  }

  void finish() {
    const at::NoGradGuard no_gradient;
    armed = false;
    if (microbatch != passes * options.leaves) fail("train: fewer microbatches than the step was begun with");
    if (surprised)
      throw RunFailed(
          str("backward adds to the gradient of ", names[*surprised], " more often than in the first step"));
    if (!agreed) agree();
    for (std::size_t i = 0; i < params.size(); ++i)
      if (used[i] == 0 && params[i].grad().defined())
        throw RunFailed(str(names[i], " has a gradient now, and had none in the first step"));
    while (next_bucket < buckets.size()) send(buckets[next_bucket++]);
    if (team != nullptr) receive();
    keep_own();
    const double share = 1.0 / static_cast<double>(options.leaves * ranks());
    for (const Bucket& bucket : buckets) {
      for (std::size_t j = 0; j < bucket.values.size(); ++j) {
        const std::size_t i = bucket.values[j];
        if (i < params.size())
          params[i].mutable_grad() = bucket.views[j];
        else
          buffers[i - params.size()].copy_(bucket.views[j] * share);
      }
    }
    branches.clear();
  }

  // They are in memory until now anyway: to keep them costs nothing but time to live.
  void keep_own() {
    own.clear();
    if (team == nullptr) return;
    const auto keep = [&](const at::Tensor& gradient) {
      if (gradient.defined()) own.push_back(gradient);
    };
    for (const at::Tensor& param : params) keep(param.grad());
    for (const Branch& branch : branches)
      for (std::size_t i = 0; i < params.size(); ++i) keep(branch.values[i]);
  }

  void receive() {
    if (!options.fixed_tree) {
      for (Bucket& bucket : buckets) bucket.pending.wait();
      return;
    }
    for (Bucket& bucket : buckets) {
      bucket.pending.wait();
      at::Tensor rows = bucket.theirs.view({ranks(), -1});
      if (options.context > 1)
        rows = rows.view({-1, options.context, rows.size(1)}).transpose(0, 1).reshape({ranks(), -1});
      while (rows.size(0) > 1) {
        const at::Tensor pairs = rows.view({rows.size(0) / 2, 2, -1});
        rows = pairs.select(1, 0) + pairs.select(1, 1);
      }
      bucket.mine = rows.view({-1});
      std::vector<at::Tensor> parts = bucket.flat.chunk(ranks());
      bucket.pending = team->start_all_gather(parts, bucket.mine, kGradients);
    }
    for (Bucket& bucket : buckets) bucket.pending.wait();
  }

  Team* const team;
  const GradientSumOptions options;
  const std::vector<std::string> names;
  const Values params, buffers;
  std::vector<char> used;            // by value: on any rank
  std::vector<int> expected, fired;  // by parameter: how often backward adds to its gradient in a microbatch
  std::vector<std::size_t> place;    // by parameter: its bucket
  std::vector<Bucket> buckets;       // of gradients, then of buffers
  std::size_t gradient_buckets = 0, next_bucket = 0;
  bool agreed = false, armed = false;
  std::optional<std::size_t> surprised;
  std::int64_t passes = 1, microbatch = 0;
  std::vector<Branch> branches;  // of the last pass, each at least twice as large as the next
  std::vector<Values> held;      // by leaf, between passes
  Values start_buffers;
  Values own;                         // gradients of this rank alone
  std::vector<NodePtr> accumulators;  // kept: a parameter itself only knows a live one
};

GradientSum::GradientSum(Team* maybe_team, std::vector<std::string> names, std::vector<at::Tensor> params,
                         std::vector<at::Tensor> buffers, const GradientSumOptions& options)
    : state_(std::make_shared<State>(maybe_team, std::move(names), std::move(params), std::move(buffers), options)) {
  if (maybe_team == nullptr || !options.overlap) return;
  for (std::size_t i = 0; i < state_->params.size(); ++i) {
    const NodePtr node = torch::autograd::impl::grad_accumulator(state_->params[i]);
    node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak = std::weak_ptr<State>(state_), i](const torch::autograd::variable_list& outputs,
                                                 const torch::autograd::variable_list&) {
          if (const std::shared_ptr<State> state = weak.lock()) state->fired_for(i);
          return outputs;
        }));
    state_->accumulators.push_back(node);
  }
}

GradientSum::~GradientSum() = default;

void GradientSum::begin(std::int64_t passes) { state_->begin(passes); }
void GradientSum::before_microbatch() { state_->before(); }
void GradientSum::after_microbatch() { state_->after(); }
void GradientSum::finish() { state_->finish(); }
void GradientSum::forget_own() { state_->own.clear(); }

at::Tensor GradientSum::own_norm() const {
  const at::NoGradGuard no_gradient;
  if (state_->own.empty()) return at::zeros({});
  return at::stack(at::_foreach_norm(state_->own, 2)).to(at::kFloat).norm();
}

}  // namespace mhla::distributed
