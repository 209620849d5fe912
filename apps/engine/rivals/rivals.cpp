// Builds the tensors once, times every variant of a rival at one thread and at the asked count, and
// reports the fastest. LibTorch starts with one ATen thread and all OpenBLAS threads: both are set.
#include "apps/engine/rivals/rivals.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <stdexcept>
#include <thread>

#include "apps/engine/rivals/variants.h"
#include "mhla/ops/torch_pool.h"

namespace mhla::rivals {
namespace {

std::string blas_path() {
  Dl_info place{};
  void* symbol = dlsym(RTLD_DEFAULT, "sgemm_");
  return symbol != nullptr && dladdr(symbol, &place) != 0 && place.dli_fname != nullptr ? place.dli_fname : "not found";
}

void set_threads(int threads) {
  ops::set_torch_threads(threads);
  if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) set(threads);
}

at::Tensor borrow(const float* data, std::vector<int64_t> shape, at::ScalarType type) {
  return at::from_blob(const_cast<float*>(data), shape, at::kFloat).to(type);
}

struct Timed {
  double median_ms = 0.0, best_ms = 0.0;
};

template <class Work>
Timed time_it(const RivalRequest& r, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ms;
  const auto start = Clock::now();
  work();  // warm-up
  // A call that alone takes longer than the whole budget is warm enough: its second run is the sample.
  for (;;) {
    const auto before = Clock::now();
    work();
    const auto after = Clock::now();
    ms.push_back(std::chrono::duration<double, std::milli>(after - before).count());
    const double spent = std::chrono::duration<double>(after - start).count();
    const bool enough = static_cast<int>(ms.size()) >= r.min_repeats && spent >= r.min_seconds;
    if (enough || spent >= 4.0 * r.min_seconds) break;
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms.front()};
}

double error_against(const at::Tensor& out, const float* expected) {
  const at::Tensor want = at::from_blob(const_cast<float*>(expected), out.sizes(), at::kFloat);
  const double off = (out.to(at::kFloat) - want).abs().max().item<double>();
  return off / want.abs().max().item<double>();
}

}  // namespace

std::string describe() { return "LibTorch " TORCH_VERSION ", BLAS " + blas_path(); }

void time_rival(const RivalRequest& r, apps::RivalResult& result) {
  const std::string &rival = r.rival, &dtype = r.dtype;
  if (dtype != "f32" && dtype != "bf16") throw std::runtime_error("LibTorch has no " + dtype + " products on the CPU");
  const at::ScalarType type = dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const std::vector<Variant> variants = rival == "plain"     ? plain_variants(r)
                                        : rival == "linear"  ? linear_variants(r)
                                        : rival == "softmax" ? softmax_variants(r)
                                                             : throw std::runtime_error("unknown rival " + rival);
  Inputs in{borrow(r.q, {r.B, r.N, r.H, r.D}, type), borrow(r.k, {r.B, r.N, r.Hkv, r.D}, type),
            borrow(r.v, {r.B, r.N, r.Hkv, r.E}, type), borrow(r.mix, {r.L, r.L}, type)};
  at::Tensor dout;
  if (r.backward) {
    dout = borrow(r.dout, {r.B, r.N, r.H, r.E}, type);
    for (at::Tensor* x : {&in.q, &in.k, &in.v}) x->set_requires_grad(true);
    in.mix.set_requires_grad(rival == "plain");
  }
  result.ms = INFINITY;
  result.error = -1.0;
  for (const Variant& variant : variants) {
    for (const int threads : std::set<int>{1, r.threads}) {
      set_threads(threads);
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the other library's workers fall asleep
      at::Tensor out;
      const Timed timed = time_it(r, [&] {
        const c10::AutoGradMode record(r.backward != 0);
        out = variant.forward(in);
        if (!r.backward) return;
        std::vector<at::Tensor> inputs{in.q, in.k, in.v};
        if (rival == "plain") inputs.push_back(in.mix);
        torch::autograd::grad({out}, inputs, {dout});
      });
      if (rival == "plain" && r.maybe_expected != nullptr) {
        const double error = error_against(out.detach(), r.maybe_expected);
        result.error = std::max(result.error, error);
        if (!(error <= (type == at::kFloat ? 1e-3 : 1e-1)))
          throw std::runtime_error("variant '" + variant.name + "' computes something else: error " +
                                   std::to_string(error));
      }
      if (timed.median_ms < result.ms) {
        result.ms = timed.median_ms;
        result.best_ms = timed.best_ms;
        result.threads = threads;
        result.variant = variant.name;
      }
    }
  }
  if (variants.empty() || !std::isfinite(result.ms)) throw std::runtime_error("no variant takes this problem");
}

}  // namespace mhla::rivals
