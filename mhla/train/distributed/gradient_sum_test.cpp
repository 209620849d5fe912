// Gradients summed over processes: the same bits for 1, 2, 4 and 8 ranks with the fixed tree, the plain sum without it,
// with several passes, parameters without a gradient, one that is used twice, and a rank without samples.
#include "mhla/train/distributed/gradient_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "mhla/io/crc32c.h"
#include "mhla/train/distributed/team_fixture.h"

namespace mhla::distributed {
namespace {

constexpr std::int64_t kLeaves = 8, kRows = 3;
constexpr double kSumLimit = 120;

// Two layers with a weight in common, a parameter that nothing uses, and a running mean.
struct Network {
  at::Tensor first = random({24, 24}, 1), second = random({24, 24}, 2), unused = random({5}, 3),
             scale = random({24}, 4);
  at::Tensor running = at::zeros({24}), table = at::full({3}, 0.1);

  static at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kFloat)).requires_grad_(true);
  }
  [[nodiscard]] std::vector<at::Tensor> params() const { return {first, unused, scale, second}; }

  void pass(std::int64_t microbatch) {
    const at::Tensor x =
        at::randn({kRows, 24}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + microbatch)),
                  at::TensorOptions(at::kFloat));
    const at::Tensor hidden = at::matmul(at::tanh(at::matmul(x, first)), second) * scale;
    at::matmul(hidden, first).square().sum().backward();
    const at::NoGradGuard no_gradient;
    running.mul_(0.9).add_(hidden.mean(0), 0.1);
  }
};

// Three steps of `passes` passes over kLeaves microbatches; gradients and running mean of the last, as a checksum, and
// the norm. Microbatch `empty` of the last step has no samples.
std::string three_steps(const World& world, bool fixed, std::int64_t passes, std::int64_t empty = -1,
                        bool second_pass_to_first = false) {
  std::unique_ptr<Team> team = world.alone() ? nullptr : std::make_unique<Team>(world, 60);
  Network net;
  GradientSumOptions options;
  options.leaves = fixed ? kLeaves / world.size : 1;
  options.fixed_tree = fixed, options.bucket_bytes = 3000;  // smaller than a layer
  GradientSum sum(team.get(), {"first", "unused", "scale", "second"}, net.params(), {net.running, net.table}, options);
  const std::int64_t parts = options.leaves * world.size;
  for (std::int64_t step = 0; step < 3; ++step) {
    for (const at::Tensor& param : net.params()) param.mutable_grad().reset();
    sum.begin(passes);
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      for (std::int64_t leaf = 0; leaf < options.leaves; ++leaf) {
        const std::int64_t number = (step * passes + pass) * parts + world.rank * options.leaves + leaf;
        sum.before_microbatch();
        if (step < 2 || world.rank * options.leaves + leaf != empty) net.pass(number);
        if (second_pass_to_first && step == 1) net.pass(number);
        sum.after_microbatch();
      }
    }
    sum.finish();
  }
  if (net.unused.grad().defined()) return "a gradient of what nothing uses";
  std::uint32_t crc = 0;
  double norm = 0;
  for (const at::Tensor& value : {net.first.grad(), net.scale.grad(), net.second.grad(), net.running, net.table}) {
    const at::Tensor flat = value.contiguous();
    crc = crc32c({static_cast<const std::byte*>(flat.data_ptr()), flat.nbytes()}) + 31 * crc;
    norm += flat.to(at::kDouble).square().sum().item<double>();
  }
  return str(crc, " ", std::sqrt(norm));
}

std::vector<std::string> said_by(int size, const TeamProcesses::Body& body) {
  TeamProcesses team(size, body);
  std::vector<std::string> said;
  for (const RankEnd& end : team.wait(kSumLimit)) said.push_back(end.code == 0 ? end.said : "failed: " + end.said);
  return said;
}

double norm_in(const std::string& text) { return std::stod(text.substr(text.find(' ') + 1)); }

TEST(GradientSum, FixedTreeHasTheSameBitsForEveryNumberOfRanks) {
  for (const auto& [passes, empty] : {std::pair<std::int64_t, std::int64_t>{1, -1}, {3, -1}, {1, 5}, {2, 0}}) {
    const std::string one =
        said_by(1, [&, p = passes, e = empty](const World& w) { return three_steps(w, true, p, e); })[0];
    EXPECT_TRUE(std::isfinite(norm_in(one))) << one;
    for (const int size : {2, 4, 8})
      for (const std::string& said :
           said_by(size, [&, p = passes, e = empty](const World& w) { return three_steps(w, true, p, e); }))
        EXPECT_EQ(said, one) << size << " ranks, " << passes << " passes, microbatch " << empty << " empty";
  }
}

TEST(GradientSum, PlainSumIsTheSameOnAllRanksAndNearTheTree) {
  const std::string tree = said_by(1, [](const World& w) { return three_steps(w, true, 1); })[0];
  const std::vector<std::string> eight = said_by(8, [](const World& w) { return three_steps(w, false, 1); });
  for (const std::string& said : eight) EXPECT_EQ(said, eight[0]);
  EXPECT_NEAR(norm_in(eight[0]), norm_in(tree), 1e-5 * norm_in(tree));
  // Any number of ranks, a rank without samples.
  const std::vector<std::string> three = said_by(3, [](const World& w) { return three_steps(w, false, 2, 1); });
  for (const std::string& said : three) EXPECT_EQ(said, three[0]);
  EXPECT_TRUE(std::isfinite(norm_in(three[0]))) << three[0];
}

TEST(GradientSum, AGradientThatComesTooLateIsAnError) {
  for (const std::string& said : said_by(2, [](const World& w) { return three_steps(w, false, 1, -1, true); }))
    EXPECT_NE(said.find("more often than in the first step"), std::string::npos) << said;
}

TEST(GradientSum, LeavesArePowersOfTwo) {
  Network net;
  EXPECT_THROW(GradientSum(nullptr, {"first"}, {net.first}, {}, {.leaves = 6}), Error);
}

}  // namespace
}  // namespace mhla::distributed
