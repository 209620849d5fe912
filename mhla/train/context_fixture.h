// Trainings of real processes that share sequences, and two runs compared, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "mhla/train/distributed/team_fixture.h"
#include "mhla/train/options.h"

namespace mhla::train {

// This process as one of the ranks: the team that it meets, and its place in the options.
class Placed {
 public:
  Placed(const distributed::World& world, TrainOptions& options) {
    if (!world.alone()) team_ = std::make_unique<distributed::Team>(world, options.timeout);
    options.place = {.rank = world.rank, .ranks = world.size, .local_ranks = world.size, .maybe_team = team_.get()};
    place_sequences(options);
  }
  // As the program does it: where this process fails, the others learn why.
  template <class Work>
  std::string run(const Work& work) const {
    try {
      return work();
    } catch (const std::exception& error) {
      const bool my_own = dynamic_cast<const distributed::RankFailed*>(&error) == nullptr;
      if (team_) team_->leave_with(error.what(), my_own, dynamic_cast<const Error*>(&error) != nullptr);
      throw;
    }
  }

 private:
  std::unique_ptr<distributed::Team> team_;
};

// All ranks end well and say this.
inline void expect_team_ends(int ranks, const distributed::TeamProcesses::Body& body, const std::string& said = "") {
  distributed::TeamProcesses team(ranks, body);
  for (const distributed::RankEnd& end : team.wait(100)) {
    ASSERT_EQ(end.code, 0) << ranks << " ranks: " << end.said;
    EXPECT_EQ(end.said, said);
  }
}

// The log in numbers: loss and norm of the gradients of all steps, then the loss of an evaluation that has one.
inline std::vector<double> losses_of(const std::filesystem::path& folder) {
  std::vector<double> losses;
  std::ifstream file(folder / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    const JsonValue row = parse_json(line, "log");
    const std::string kind = row.at("kind").as_string();
    if (const JsonValue* loss = row.find("loss"); loss != nullptr && (kind == "step" || kind == "eval"))
      losses.push_back(loss->as_double());
    if (kind == "step") losses.push_back(row.at("grad_norm").as_double());  // AdamW does not show the size of gradients
  }
  return losses;
}

// Weights of a run, all in one row.
inline std::vector<double> weights_of(const std::filesystem::path& folder) {
  std::vector<double> values;
  const Safetensors file = Safetensors::read(folder / "model.safetensors");
  for (std::size_t i = 0; i < file.size(); ++i) {
    const ConstView tensor = file.view(i);
    for (std::int64_t j = 0; j < tensor.numel(); ++j) values.push_back(load_f64(tensor.data, tensor.dtype, j));
  }
  return values;
}

inline double difference(const std::vector<double>& got, const std::vector<double>& want) {
  double square = 0, all = 0;
  if (got.size() != want.size() || want.empty()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < want.size(); ++i) {
    square += (got[i] - want[i]) * (got[i] - want[i]);
    all += want[i] * want[i];
  }
  return std::sqrt(square / all);
}

inline bool same_bytes(const std::filesystem::path& a, const std::filesystem::path& b, const char* name) {
  return read_file(a / name) == read_file(b / name);
}

}  // namespace mhla::train
