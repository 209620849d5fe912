#include "mhla/train/sharded_row.h"

#include <algorithm>
#include <optional>

#include "mhla/core/error.h"
#include "mhla/io/safetensors_stream.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::train {
namespace {

constexpr const char* kState = "the state of the optimiser";

NamedTensors by_name(NamedTensors tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return tensors;
}

std::vector<std::int64_t> sizes_of(const NamedTensors& tensors) {
  std::vector<std::int64_t> sizes;
  for (const auto& [name, tensor] : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

// Rows one after another, a tensor at a time, as a file asks for them.
class RowsInOrder {
 public:
  RowsInOrder(distributed::Team& team, const PrefixedRows& rows) : team_(team), rows_(rows) {}

  void give(const NamedView& tensor, const ByteSink& sink) {
    for (std::int64_t left = tensor.view.numel(); left > 0;) {
      if (next_part_ == parts_.size()) advance();
      const distributed::FlatCut::Part& part = parts_[next_part_++];
      const auto& [prefix, row] = rows_[row_];
      if (prefix + row->names[part.tensor] != tensor.name)
        throw RunFailed(str(tensor.name, " is written before ", prefix, row->names[part.tensor]));
      const torch::Tensor numbers = reader_->piece().narrow(0, part.at, part.count);
      sink({static_cast<const std::byte*>(numbers.data_ptr()), numbers.nbytes()});
      left -= part.count;
    }
  }

 private:
  void advance() {
    for (;;) {
      if (reader_ && reader_->next()) break;
      if (reader_) ++row_;
      if (row_ == rows_.size()) throw RunFailed("a file asks for more than the ranks keep");
      reader_.emplace(team_, rows_[row_].second->cut, rows_[row_].second->mine, kState);
    }
    parts_ = reader_->parts(), next_part_ = 0;
  }

  distributed::Team& team_;
  const PrefixedRows& rows_;
  std::size_t row_ = 0, next_part_ = 0;
  std::optional<distributed::RowReader> reader_;
  std::vector<distributed::FlatCut::Part> parts_;
};

}  // namespace

ShardedRow::ShardedRow(NamedTensors given, const Place& place)
    : cut(sizes_of(given = by_name(std::move(given))), place.rank, place.ranks) {
  for (const auto& [name, tensor] : given) {
    const torch::Tensor& first = given.front().second;
    if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device())
      fail("train: shard_optimizer is on, but ", name, " is ", c10::toString(tensor.scalar_type()), " on ",
           tensor.device().str(), ", expected ", c10::toString(first.scalar_type()), " on ", first.device().str(),
           " as ", given.front().first);
    if (!tensor.is_contiguous())
      fail("train: shard_optimizer is on, but ", name, " is strided, expected contiguous memory");
    names.push_back(name), weights.push_back(tensor.detach());
  }
  if (given.empty()) fail("train: shard_optimizer is on, but there is nothing to share");
  mine = torch::zeros({cut.length(place.rank)}, weights.front().options());
}

std::vector<torch::Tensor> ShardedRow::parts_of_weights() const {
  std::vector<torch::Tensor> all;
  for (const auto& part : cut.parts(cut.rank()))
    all.push_back(weights[part.tensor].view({-1}).narrow(0, part.begin, part.count));
  return all;
}

std::vector<torch::Tensor> ShardedRow::parts() const {
  std::vector<torch::Tensor> all;
  for (const auto& part : cut.parts(cut.rank())) all.push_back(mine.narrow(0, part.at, part.count));
  return all;
}

void write_with_rows(distributed::Team& team, const std::filesystem::path& path, const NamedTensors& whole,
                     const PrefixedRows& rows, const Metadata& metadata) {
  if (!team.leads()) {
    for (const auto& [prefix, row] : rows) {
      distributed::RowReader reader(team, row->cut, row->mine, kState);
      while (reader.next()) continue;
    }
    return;
  }
  std::vector<torch::Tensor> kept;  // views do not own
  std::vector<NamedView> views;
  for (const auto& [name, tensor] : whole) {
    kept.push_back(tensor.detach().cpu().contiguous());
    views.push_back({name, ops::view_of(kept.back(), "train", name.c_str())});
  }
  for (const auto& [prefix, row] : rows) {
    for (std::size_t i = 0; i < row->names.size(); ++i) {
      ConstView view = ops::shape_view(row->weights[i], "train", row->names[i].c_str());
      view.data = nullptr;
      views.push_back({prefix + row->names[i], view});
    }
  }
  RowsInOrder in_order(team, rows);
  write_safetensors(path, views, metadata,
                    [&](const NamedView& tensor, const ByteSink& sink) { in_order.give(tensor, sink); });
}

void read_rows(const Safetensors& file, const PrefixedRows& rows) {
  const torch::NoGradGuard no_gradient;
  for (const auto& [prefix, row] : rows) {
    for (const auto& part : row->cut.parts(row->cut.rank())) {
      const auto index = file.find(prefix + row->names[part.tensor]);
      if (!index) fail(file.label(), ": tensor '", prefix, row->names[part.tensor], "' is missing");
      row->mine.narrow(0, part.at, part.count)
          .copy_(tensor_in(file, *index).view({-1}).narrow(0, part.begin, part.count));
    }
  }
}

}  // namespace mhla::train
