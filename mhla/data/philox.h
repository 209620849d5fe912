// Random numbers by counter: Philox4x32-10 (Salmon et al., 2011). A stream is a key (seed) and a name of three numbers
// (purpose, epoch, item); its n-th value needs none before it. So what is random about an item of an epoch depends on
// those alone, never on the thread or on what was drawn before.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace mhla {

using PhiloxBlock = std::array<std::uint32_t, 4>;

// Ten rounds: 128 bits of counter and 64 of key into 128 random bits.
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

class Philox {
 public:
  enum Purpose : std::uint32_t {
    kOrder = 1,
    kItem = 2,
    kBatch = 3,
    kErase = 4,
    kSubset = 5,
    kSample = 6,
    kRecall = 7,       // to be judged by
    kRecallLearn = 8,  // to be learned from
    kNoise = 9,        // of a sample (item) at a step (epoch) of a diffusion model
    kTime = 10,        // of a training image (item) of an epoch: how much noise it gets
    kDrop = 11,        // whether its label is dropped
    kTrainNoise = 12,  // and its noise
    kJudgeNoise = 13,  // of a held-out image (item) at a time (epoch)
    kClip = 14,        // of a video clip that is made (item), for training (epoch 0) or testing (1)
  };

  Philox(std::uint64_t seed, Purpose purpose, std::int64_t epoch, std::int64_t item)
      // Counter: block | item low | item high, epoch high | epoch low; the purpose goes into the key.
      : key0_(static_cast<std::uint32_t>(seed)),
        key1_(static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(purpose) * 0x85EBCA6Bu)),
        counter_{0, static_cast<std::uint32_t>(item),
                 static_cast<std::uint32_t>(item >> 32) ^ (static_cast<std::uint32_t>(epoch >> 32) << 16),
                 static_cast<std::uint32_t>(epoch)} {}

  std::uint32_t bits() {
    if (used_ == 4) {
      block_ = philox4x32(counter_, key0_, key1_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[static_cast<std::size_t>(used_++)];
  }
  double uniform() {  // [0, 1), 53 bits
    const std::uint64_t high = bits() >> 5, low = bits() >> 6;
    return static_cast<double>((high << 26) | low) * 0x1p-53;
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double probability) { return uniform() < probability; }
  std::int64_t below(std::int64_t count) {  // [0, count) without bias
    const auto bound = static_cast<std::uint64_t>(count);
    const std::uint64_t reject = (0 - bound) % bound;  // 2^64 mod count
    for (;;) {
      const std::uint64_t value = (std::uint64_t{bits()} << 32) | bits();
      if (value >= reject) return static_cast<std::int64_t>(value % bound);
    }
  }
  // `count` different ones of [first, first + size), in random order: the beginning of a shuffle.
  std::vector<std::uint32_t> draw(std::int64_t first, std::int64_t size, std::int64_t count) {
    std::vector<std::uint32_t> all(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i);
    for (std::int64_t i = 0; i < count; ++i)
      std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i + below(size - i))]);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }
  double normal() {  // Box and Muller, the cosine alone: every call takes the same number of bits
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  void normals(float* out, std::int64_t count) {  // both values of each pair
    for (std::int64_t i = 0; i < count; i += 2) {
      const float radius = std::sqrt(-2.0f * std::log(static_cast<float>((bits() >> 8) + 1u) * 0x1p-24f));
      const float angle = 6.2831853f * (static_cast<float>(bits() >> 8) * 0x1p-24f);
      out[i] = radius * std::cos(angle);
      if (i + 1 < count) out[i + 1] = radius * std::sin(angle);
    }
  }
  double beta(double alpha) {  // Beta(alpha, alpha), by two Gammas
    const double a = gamma(alpha), b = gamma(alpha);
    return a + b > 0.0 ? a / (a + b) : uniform() < 0.5 ? 0.0 : 1.0;  // both underflow: the law is two points
  }

 private:
  double gamma(double shape) {  // Marsaglia and Tsang, 2000; a shape below 1 from the one above
    if (shape < 1.0) return gamma(shape + 1.0) * std::pow(1.0 - uniform(), 1.0 / shape);
    const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
    for (;;) {
      const double x = normal();
      const double v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
      if (v <= 0.0) continue;
      if (std::log(1.0 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

  std::uint32_t key0_, key1_;
  PhiloxBlock counter_, block_{};
  int used_ = 4;
};

}  // namespace mhla
