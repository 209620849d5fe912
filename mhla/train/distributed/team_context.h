// Ranks of a team that share every sequence: the exchanges of ops/context_parallel.h over connections of their own,
// which are opened by the first of them. Ranks [n * size, (n + 1) * size) share the same ones.
#pragma once

#include <optional>

#include "mhla/ops/context_parallel.h"
#include "mhla/train/distributed/team.h"

namespace mhla::distributed {

class TeamContext : public ops::ContextGroup {
 public:
  TeamContext(Team& team, int size) : team_(team), size_(size) {}
  [[nodiscard]] std::int64_t rank() const override { return team_.rank() % size_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  at::Tensor gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) override;
  at::Tensor exchange(const at::Tensor& own, const std::vector<std::int64_t>& send,
                      const std::vector<std::int64_t>& receive) override;

 private:
  Team::Part& part();

  Team& team_;
  int size_;
  std::optional<Team::Part> part_;
};

}  // namespace mhla::distributed
