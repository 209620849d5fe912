// State of a training that its processes keep together (--shard-optimizer): moments of AdamW, the running average of
// the weights. The tensors stand in one row, in the order of their names, and each process keeps an equal range of it
// (distributed/flat_cut.h). Files have the tensors whole and by name, whoever keeps them.
#pragma once

#include <filesystem>

#include "mhla/train/distributed/flat_cut.h"
#include "mhla/train/options.h"
#include "mhla/train/weights.h"

namespace mhla::train {

struct ShardedRow {
  // Of something that every one of `weights` has, which are contiguous and of one type. All of it is 0.
  ShardedRow(NamedTensors weights, const Place& place);
  // This process's parts of the weights, and of the row: [count] each, views.
  [[nodiscard]] std::vector<torch::Tensor> parts_of_weights() const;
  [[nodiscard]] std::vector<torch::Tensor> parts() const;

  std::vector<std::string> names;  // ascending, as a file has them
  std::vector<torch::Tensor> weights;
  distributed::FlatCut cut;
  torch::Tensor mine;  // [cut.length(rank)]
};
// Rows of a file; the prefix comes before their names.
using PrefixedRows = std::vector<std::pair<std::string, const ShardedRow*>>;

// One file of tensors that rank 0 has and of rows, whose prefixes ascend: rank 0 writes, the others hand over what they
// keep. All ranks call it.
void write_with_rows(distributed::Team& team, const std::filesystem::path& path, const NamedTensors& whole,
                     const PrefixedRows& rows, const Metadata& metadata = {});
// This process's numbers, from a file in which the tensors were found (expect_tensors).
void read_rows(const Safetensors& file, const PrefixedRows& rows);

}  // namespace mhla::train
