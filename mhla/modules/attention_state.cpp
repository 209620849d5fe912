#include "mhla/modules/attention_state.h"

#include <algorithm>

#include "mhla/core/labelled.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

// Keys and values have room for more tokens than were seen.
bool has_room(const std::string& name) { return name == "keys" || name == "values"; }

std::int64_t furthest(const std::vector<std::int64_t>& positions) {
  return positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
}

torch::Tensor with_room(const torch::Tensor& x, std::int64_t room) {
  return torch::constant_pad_nd(x, {0, 0, 0, 0, 0, room - x.size(1)});
}

torch::Tensor tensor_of(const NamedView& named) {
  const at::IntArrayRef sizes(named.view.shape.data(), static_cast<std::size_t>(named.view.rank));
  const torch::Tensor copy = torch::empty(sizes, ops::scalar_type_of(named.view.dtype));
  if (copy.numel() > 0) std::memcpy(copy.data_ptr(), named.view.data, copy.nbytes());
  return copy;
}

StreamingState load_stream(const SavedState& from, const std::string& prefix, const StreamingState& like,
                           const char* entry) {
  std::vector<torch::Tensor> held;  // contiguous while the views are read
  std::vector<NamedView> views;
  for (auto it = from.tensors.lower_bound(prefix); it != from.tensors.end() && it->first.rfind(prefix, 0) == 0; ++it) {
    held.push_back(it->second.cpu().contiguous());
    views.push_back({it->first.substr(prefix.size()), ops::view_of(held.back(), entry, it->first.c_str())});
  }
  std::map<std::string, std::string> metadata;
  for (auto it = from.text.lower_bound(prefix); it != from.text.end() && it->first.rfind(prefix, 0) == 0; ++it)
    metadata[it->first.substr(prefix.size())] = it->second;
  StreamingState loaded =
      labelled(entry, [&] { return StreamingState::load(views, metadata, std::max(like.config().device, 0)); });
  const StreamingConfig &got = loaded.config(), &want = like.config();
  if (got.H != want.H || got.Hkv != want.Hkv || got.D != want.D || got.E != want.E || got.chunk != want.chunk ||
      got.dtype != want.dtype || got.device != want.device || got.beyond_mix != want.beyond_mix) {
    fail(entry, ": ", prefix, " has ", got.H, " heads of ", got.D, " and ", got.E, " in ", name_of(got.dtype),
         ", chunks of ", got.chunk, ", expected ", want.H, " of ", want.D, " and ", want.E, " in ", name_of(want.dtype),
         ", chunks of ", want.chunk, ", on the same kind of device and with the same length policy");
  }
  return loaded;
}

}  // namespace

std::vector<StreamingState*> AttentionState::stream_pointers() {
  std::vector<StreamingState*> pointers;
  pointers.reserve(streams.size());
  for (StreamingState& stream : streams) pointers.push_back(&stream);
  return pointers;
}

std::int64_t AttentionState::bytes() const {
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += static_cast<std::int64_t>(tensor.nbytes());
  for (const StreamingState& stream : streams) sum += stream.bytes();
  return sum;
}

AttentionState select(const AttentionState& state, const std::vector<std::int64_t>& sequences) {
  AttentionState chosen;
  if (sequences.empty()) fail("select: no sequences are named, expected at least one");
  for (const std::int64_t b : sequences) {
    if (b < 0 || b >= static_cast<std::int64_t>(state.positions.size()))
      fail("select: sequence is ", b, ", expected 0 to ", state.positions.size() - 1);
    chosen.positions.push_back(state.positions[static_cast<std::size_t>(b)]);
    if (!state.streams.empty()) chosen.streams.push_back(state.streams[static_cast<std::size_t>(b)]);
  }
  const torch::Tensor rows = torch::tensor(sequences, torch::kLong);
  for (const auto& [name, tensor] : state.tensors)
    chosen.tensors[name] = tensor.index_select(0, rows.to(tensor.device()));
  return chosen;
}

AttentionState join(std::vector<AttentionState> states) {
  if (states.empty()) fail("join: no states are given, expected at least one");
  AttentionState all;
  std::map<std::string, std::vector<torch::Tensor>> parts;
  for (AttentionState& state : states) {
    if (state.tensors.size() != states[0].tensors.size() || state.streams.empty() != states[0].streams.empty())
      fail("join: the states belong to different layers, expected states of one");
    all.positions.insert(all.positions.end(), state.positions.begin(), state.positions.end());
    for (StreamingState& stream : state.streams) all.streams.push_back(std::move(stream));
    for (const auto& [name, tensor] : state.tensors) parts[name].push_back(tensor);
  }
  for (auto& [name, list] : parts) {
    if (has_room(name)) {
      std::int64_t room = 0;
      for (const torch::Tensor& part : list) room = std::max(room, part.size(1));
      for (torch::Tensor& part : list) part = with_room(part, room);
    }
    all.tensors[name] = torch::cat(list, 0);
  }
  return all;
}

void save(const AttentionState& state, const std::string& prefix, SavedState& to) {
  to.tensors[prefix + "positions"] = torch::tensor(state.positions, torch::kLong);
  for (const auto& [name, tensor] : state.tensors) {
    const torch::Tensor used = has_room(name) ? tensor.narrow(1, 0, furthest(state.positions)) : tensor;
    to.tensors[prefix + name] = used.cpu().contiguous();
  }
  for (std::size_t b = 0; b < state.streams.size(); ++b) {
    const std::string mine = str(prefix, "stream.", b, ".");
    for (const NamedView& named : state.streams[b].views()) to.tensors[mine + named.name] = tensor_of(named);
    for (const auto& [name, text] : state.streams[b].metadata()) to.text[mine + name] = text;
  }
}

AttentionState load(const SavedState& from, const std::string& prefix, const AttentionState& like, const char* entry) {
  const auto find = [&](const std::string& name) -> const torch::Tensor& {
    const auto found = from.tensors.find(prefix + name);
    if (found == from.tensors.end()) fail(entry, ": ", prefix, name, " is missing");
    return found->second;
  };
  AttentionState state;
  const torch::Tensor& places = find("positions");
  if (places.dim() != 1 || places.size(0) < 1 || places.scalar_type() != torch::kLong)
    fail(entry, ": ", prefix, "positions is ", c10::str(places.scalar_type()), " of shape ", c10::str(places.sizes()),
         ", expected int64 of shape [B]");
  state.positions.assign(places.data_ptr<std::int64_t>(), places.data_ptr<std::int64_t>() + places.numel());
  if (*std::min_element(state.positions.begin(), state.positions.end()) < 0)
    fail(entry, ": ", prefix, "positions has a number below 0");
  for (const auto& [name, expected] : like.tensors) {
    const torch::Tensor& given = find(name);
    std::vector<std::int64_t> shape = expected.sizes().vec();
    shape[0] = places.size(0);
    if (has_room(name)) shape[1] = furthest(state.positions);
    if (given.sizes() != c10::IntArrayRef(shape) || given.scalar_type() != expected.scalar_type())
      fail(entry, ": ", prefix, name, " is ", c10::str(given.scalar_type()), " of shape ", c10::str(given.sizes()),
           ", expected ", c10::str(expected.scalar_type()), " of shape ", c10::str(c10::IntArrayRef(shape)));
    state.tensors[name] = given.to(expected.device()).clone();
  }
  for (std::size_t b = 0; !like.streams.empty() && b < state.positions.size(); ++b) {
    state.streams.push_back(load_stream(from, str(prefix, "stream.", b, "."), like.streams[0], entry));
    if (state.streams.back().position() != state.positions[b])
      fail(entry, ": ", prefix, "stream.", b, " stands at ", state.streams.back().position(), ", expected ",
           state.positions[b]);
  }
  return state;
}

torch::Tensor next_positions(const std::vector<std::int64_t>& positions, std::int64_t tokens,
                             const torch::Device& device) {
  const torch::Tensor first = torch::tensor(positions, torch::kLong).unsqueeze(-1);
  const torch::Tensor all = first + torch::arange(tokens, torch::kLong);
  // A copy from pageable memory would wait for everything that the device has to do before it.
  return device.is_cuda() ? all.pin_memory().to(device, /*non_blocking=*/true) : all;
}

}  // namespace mhla
