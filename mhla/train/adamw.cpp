#include "mhla/train/adamw.h"

#include <cmath>
#include <map>

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

struct Rates {
  double decay;       // p is multiplied by it
  double step;        // lr / (1 - b1^t)
  double root_scale;  // 1 / sqrt(1 - b2^t)
  double beta1, beta2, eps;
};

// errno of a square root would keep it out of vector registers.
template <class T>
[[gnu::optimize("no-math-errno")]] void update_range(T* __restrict p, const T* __restrict g, T* __restrict m,
                                                     T* __restrict v, std::int64_t count, double grad_scale,
                                                     const Rates& rates) {
  const T scale = static_cast<T>(grad_scale), decay = static_cast<T>(rates.decay), step = static_cast<T>(rates.step);
  const T b1 = static_cast<T>(rates.beta1), b2 = static_cast<T>(rates.beta2), eps = static_cast<T>(rates.eps);
  const T c1 = static_cast<T>(1.0 - rates.beta1), c2 = static_cast<T>(1.0 - rates.beta2);
  const T root_scale = static_cast<T>(rates.root_scale);
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * scale;
    m[i] = b1 * m[i] + c1 * gradient;
    v[i] = b2 * v[i] + c2 * (gradient * gradient);
    p[i] = decay * p[i] - step * m[i] / (std::sqrt(v[i]) * root_scale + eps);
  }
}

template <class T>
void update_on_cpu(T* p, const T* g, T* m, T* v, std::int64_t count, double grad_scale, const Rates& rates) {
  constexpr std::int64_t kGrain = 16384;  // four arrays of 64 KiB: worth a thread, and still in L2
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    update_range(p + begin, g + begin, m + begin, v + begin, end - begin, grad_scale, rates);
  });
}

// The numbers of p from `begin` on, as many as m has.
void update_one(const torch::Tensor& p, const torch::Tensor& grad, const torch::Tensor& m, const torch::Tensor& v,
                std::int64_t begin, double grad_scale, const Rates& rates) {
  const torch::Tensor g = grad.contiguous();
  if (p.scalar_type() == torch::kFloat) {
    update_on_cpu(p.data_ptr<float>() + begin, g.data_ptr<float>() + begin, m.data_ptr<float>(), v.data_ptr<float>(),
                  m.numel(), grad_scale, rates);
  } else {
    update_on_cpu(p.data_ptr<double>() + begin, g.data_ptr<double>() + begin, m.data_ptr<double>(),
                  v.data_ptr<double>(), m.numel(), grad_scale, rates);
  }
}

// The same numbers as a tensor.
torch::Tensor part_of(const torch::Tensor& x, std::int64_t begin, const torch::Tensor& m) {
  return m.sizes() == x.sizes() ? x : x.detach().reshape({-1}).narrow(0, begin, m.numel());  // shared ones are flat
}

}  // namespace

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options, const Place& shared_by)
    : options_(options), groups_(std::move(groups)), place_(shared_by) {
  const bool shared = place_.ranks > 1;
  for (const ParamGroup& group : groups_) {
    Moments moments;
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const torch::Tensor& p = group.params[i];
      if (p.scalar_type() != torch::kFloat && p.scalar_type() != torch::kDouble)
        fail("AdamW: ", group.names[i], " is ", c10::toString(p.scalar_type()), ", expected f32 (or f64)");
      if (!p.is_contiguous()) fail("AdamW: ", group.names[i], " is strided, expected contiguous memory");
      moments.m.push_back(shared ? torch::Tensor() : torch::zeros_like(p));
      moments.v.push_back(shared ? torch::Tensor() : torch::zeros_like(p));
      moments.begin.push_back(0);
    }
    moments_.push_back(std::move(moments));
  }
  if (shared) share();
}

void AdamW::share() {
  NamedTensors weights;
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;  // group, and place in it
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (std::size_t j = 0; j < groups_[i].params.size(); ++j) {
      weights.emplace_back(groups_[i].names[j], groups_[i].params[j]);
      places[groups_[i].names[j]] = {i, j};
    }
  }
  m_.emplace(weights, place_), v_.emplace(weights, place_);
  for (const auto& part : m_->cut.parts(place_.rank)) {
    const auto [i, j] = places.at(m_->names[part.tensor]);
    moments_[i].m[j] = m_->mine.narrow(0, part.at, part.count);
    moments_[i].v[j] = v_->mine.narrow(0, part.at, part.count);
    moments_[i].begin[j] = part.begin;
  }
}

void AdamW::step(double lr, const std::vector<torch::Tensor>& scales) {
  if (scales.size() != groups_.size())
    fail("AdamW: ", scales.size(), " scales for ", groups_.size(), " groups, expected one for each");
  RECORD_USER_SCOPE("mhla::AdamW");
  const torch::NoGradGuard no_gradient;
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const double correction1 = 1.0 - std::pow(options_.beta1, t), correction2 = 1.0 - std::pow(options_.beta2, t);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const ParamGroup& group = groups_[i];
    const double rate = lr * group.lr_scale;
    if (scales[i].is_cpu()) {
      const auto scale = scales[i].item<double>();
      const Rates rates{.decay = 1.0 - rate * group.weight_decay,
                        .step = rate / correction1,
                        .root_scale = 1.0 / std::sqrt(correction2),
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .eps = options_.eps};
      for (std::size_t j = 0; j < group.params.size(); ++j) {
        if (group.params[j].grad().defined() && moments_[i].m[j].defined())
          update_one(group.params[j], group.params[j].grad(), moments_[i].m[j], moments_[i].v[j], moments_[i].begin[j],
                     scale, rates);
      }
      continue;
    }
    std::vector<torch::Tensor> params, grads, m, v;
    for (std::size_t j = 0; j < group.params.size(); ++j) {
      if (!group.params[j].grad().defined() || !moments_[i].m[j].defined()) continue;
      m.push_back(moments_[i].m[j]), v.push_back(moments_[i].v[j]);
      params.push_back(part_of(group.params[j], moments_[i].begin[j], m.back()));
      grads.push_back(part_of(group.params[j].grad(), moments_[i].begin[j], m.back()));
    }
    if (!params.empty())
      ops::fused_adamw(params, grads, m, v,
                       {.lr = rate,
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .weight_decay = group.weight_decay,
                        .eps = options_.eps,
                        .t = steps_},
                       scales[i]);
  }
  if (m_) distributed::complete(*place_.maybe_team, m_->cut, m_->weights, "weights");
}

void AdamW::zero_grad() {
  for (const ParamGroup& group : groups_) {
    for (const torch::Tensor& p : group.params) p.mutable_grad().reset();
  }
}

NamedTensors AdamW::state() const {
  NamedTensors all;
  for (std::size_t i = 0; i < groups_.size() && !m_; ++i) {
    for (std::size_t j = 0; j < groups_[i].params.size(); ++j) {
      all.emplace_back("m." + groups_[i].names[j], moments_[i].m[j]);
      all.emplace_back("v." + groups_[i].names[j], moments_[i].v[j]);
    }
  }
  return all;
}

PrefixedRows AdamW::rows() const {
  if (!m_) return {};
  return {{"m.", &*m_}, {"v.", &*v_}};
}

NamedTensors AdamW::shapes() const {
  NamedTensors all = state();
  for (const auto& [prefix, row] : rows())
    for (std::size_t i = 0; i < row->names.size(); ++i) all.emplace_back(prefix + row->names[i], row->weights[i]);
  return all;
}

}  // namespace mhla::train
