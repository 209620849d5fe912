// What a causal attention remembers of a batch of sequences, each at a place of its own, between two calls of
// Attention::stream. One kind for all of them, so that forks, batches and files are written once: tensors with the
// batch first (states of scans, the last inputs of a convolution, keys and values), and for MHLA one StreamingState a
// sequence.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mhla/kernels/streaming/streaming.h"
#include "mhla/modules/torch.h"

namespace mhla {

// Tensors in host memory and text, by name.
struct SavedState {
  std::map<std::string, torch::Tensor> tensors;
  std::map<std::string, std::string> text;
};

struct AttentionState {
  AttentionState() = default;
  AttentionState(AttentionState&&) = default;
  AttentionState& operator=(AttentionState&&) = default;
  AttentionState(const AttentionState&) = delete;  // tensors would be shared: select() copies
  AttentionState& operator=(const AttentionState&) = delete;

  std::vector<std::int64_t> positions;           // [B]: tokens seen
  std::map<std::string, torch::Tensor> tensors;  // [B, ...]; "keys" and "values" [B, at least the positions, H, D]
  std::vector<StreamingState> streams;           // [B], or none

  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::vector<StreamingState*> stream_pointers();
};

// Copies of the sequences named, in that order: a fork, a larger batch, a beam search's choice.
AttentionState select(const AttentionState& state, const std::vector<std::int64_t>& sequences);
// One batch of all sequences, one behind the other; states of one layer.
AttentionState join(std::vector<AttentionState> states);

// Under names that start with `prefix`.
void save(const AttentionState& state, const std::string& prefix, SavedState& to);
// `like`: a state of the layer that will go on with it, whose names, types and sizes are expected and whose device it
// goes to. `entry` stands at the head of an error.
AttentionState load(const SavedState& from, const std::string& prefix, const AttentionState& like, const char* entry);

// [B, T]: the places of the next T tokens of every sequence.
torch::Tensor next_positions(const std::vector<std::int64_t>& positions, std::int64_t tokens,
                             const torch::Device& device);

}  // namespace mhla
