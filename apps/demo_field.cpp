// A smooth field is a sum of plane waves with random direction, phase and a length drawn around the wanted one: any
// two points close by get close values, far points unrelated ones.
#include "apps/demo_field.h"

#include <cmath>

#include "mhla/testing/random.h"

namespace mhla::apps {

DemoField make_field(std::int64_t side, std::int64_t size, std::uint64_t seed) {
  constexpr int kWaves = 24;
  constexpr double kTau = 6.283185307179586;
  constexpr double kSmooth = 1.0, kNoise = 0.5;
  Random random(seed);
  const std::int64_t tokens = side * side;
  DemoField field{Matrix(tokens, size), Matrix(tokens, size)};
  for (std::int64_t channel = 0; channel < size; ++channel) {
    std::vector<double> smooth(static_cast<std::size_t>(tokens), 0.0);
    for (int wave = 0; wave < kWaves; ++wave) {
      // Frequencies are normal with the deviation of a Gaussian correlation of side / 8 tokens.
      const double deviation = 8.0 / static_cast<double>(side);
      const double down = random.normal() * deviation, across = random.normal() * deviation,
                   phase = random.uniform() * kTau;
      for (std::int64_t t = 0; t < tokens; ++t)
        smooth[static_cast<std::size_t>(t)] +=
            std::sqrt(2.0 / kWaves) *
            std::cos(static_cast<double>(t / side) * down + static_cast<double>(t % side) * across + phase);
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double shared = kSmooth * smooth[static_cast<std::size_t>(t)];
      field.q.at(t, channel) = shared + kNoise * random.normal();
      field.k.at(t, channel) = shared + kNoise * random.normal();
    }
  }
  return field;
}

}  // namespace mhla::apps
