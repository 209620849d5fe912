#include "mhla/train/distributed/flat_cut.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla::distributed {
namespace {

// Copies numbers of a range between the tensors and `row`, where they are one after another.
void copy_range(const std::vector<FlatCut::Part>& parts, const std::vector<at::Tensor>& tensors, const at::Tensor& row,
                bool into_row) {
  for (const FlatCut::Part& part : parts) {
    const at::Tensor there = tensors[part.tensor].detach().view({-1}).narrow(0, part.begin, part.count);
    const at::Tensor here = row.narrow(0, part.at, part.count);
    into_row ? here.copy_(there) : there.copy_(here);
  }
}

// A piece of every range on its way.
struct Lap {
  std::int64_t from = 0, count = 0;
  at::Tensor mine;
  std::vector<at::Tensor> all;
  Team::Pending pending;
};

}  // namespace

FlatCut::FlatCut(const std::vector<std::int64_t>& sizes, int rank, int ranks) : rank_(rank), ranks_(ranks) {
  if (rank < 0 || rank >= ranks) fail("train: rank is ", rank, ", expected 0 to ", ranks - 1);
  const auto aligned = [](std::int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) {
    begins_.push_back(aligned(end));
    ends_.push_back(end = begins_.back() + size);
  }
  longest_ = aligned((end + ranks - 1) / ranks);
}

std::int64_t FlatCut::length(int rank) const {
  const std::int64_t end = ends_.empty() ? 0 : ends_.back();
  return std::clamp<std::int64_t>(end - rank * longest_, 0, longest_);
}

std::vector<FlatCut::Part> FlatCut::parts(int rank, std::int64_t from, std::int64_t count) const {
  const std::int64_t begin = rank * longest_ + from;
  const std::int64_t end = rank * longest_ + std::min(from + count, length(rank));
  std::vector<Part> parts;
  auto tensor = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; tensor < begins_.size() && begins_[tensor] < end; ++tensor) {
    const std::int64_t first = std::max(begin, begins_[tensor]), last = std::min(end, ends_[tensor]);
    if (last > first)
      parts.push_back({.tensor = tensor, .begin = first - begins_[tensor], .count = last - first, .at = first - begin});
  }
  return parts;
}

void complete(Team& team, const FlatCut& cut, const std::vector<at::Tensor>& tensors, const char* what,
              std::int64_t piece_bytes) {
  const at::NoGradGuard no_gradient;
  if (cut.longest() == 0) return;
  const at::TensorOptions like = tensors.front().options().requires_grad(false);
  const auto bytes = static_cast<std::int64_t>(tensors.front().element_size());
  const std::int64_t most = std::clamp<std::int64_t>(piece_bytes / (bytes * cut.ranks()), 1, cut.longest());
  Lap laps[2];  // one travels while the other is copied
  const auto start = [&](Lap& lap, std::int64_t from) {
    lap.from = from, lap.count = std::min(most, cut.longest() - from);
    if (!lap.mine.defined() || lap.mine.numel() != lap.count) {
      lap.mine = at::zeros({lap.count}, like), lap.all.clear();
      for (int rank = 0; rank < cut.ranks(); ++rank) lap.all.push_back(at::empty({lap.count}, like));
    }
    copy_range(cut.parts(cut.rank(), from, lap.count), tensors, lap.mine, /*into_row=*/true);
    lap.pending = team.start_all_gather(lap.all, lap.mine, what);
  };
  const auto end = [&](Lap& lap) {
    lap.pending.wait();
    for (int rank = 0; rank < cut.ranks(); ++rank)
      if (rank != cut.rank())
        copy_range(cut.parts(rank, lap.from, lap.count), tensors, lap.all[static_cast<std::size_t>(rank)], false);
  };
  int turn = 0;
  start(laps[0], 0);
  for (std::int64_t from = laps[0].count; from < cut.longest(); from += laps[turn].count) {
    turn ^= 1;
    start(laps[turn], from);
    end(laps[turn ^ 1]);
  }
  end(laps[turn]);
}

RowReader::RowReader(Team& team, const FlatCut& cut, at::Tensor mine, const char* what, std::int64_t piece_bytes)
    : team_(team),
      cut_(cut),
      mine_(std::move(mine)),
      what_(what),
      most_(std::max<std::int64_t>(1, piece_bytes / static_cast<std::int64_t>(mine_.element_size()) / kAlign) *
            kAlign) {}

bool RowReader::next() {
  const at::NoGradGuard no_gradient;
  if (piece_.defined()) from_ += piece_.numel();
  while (owner_ < cut_.ranks() && from_ >= cut_.length(owner_)) ++owner_, from_ = 0;
  if (owner_ >= cut_.ranks()) return false;
  const std::int64_t count = std::min(most_, cut_.length(owner_) - from_);
  if (!piece_.defined() || piece_.numel() != count) piece_ = at::empty({count}, mine_.options().device(at::kCPU));
  if (owner_ == cut_.rank()) piece_.copy_(mine_.narrow(0, from_, count));
  team_.copy_from(owner_, piece_, what_);
  return true;
}

}  // namespace mhla::distributed
