// All tensors travel as bytes: Gloo of LibTorch 1.13 does not know bf16.
#include "mhla/train/distributed/team_context.h"

#include <algorithm>
#include <numeric>

namespace mhla::distributed {
namespace {

constexpr const char* kPieces = "parts of a sequence";

at::Tensor bytes_in(const at::Tensor& x) { return x.contiguous().view({-1}).view(at::kByte); }

std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t size) {
  for (std::int64_t& count : counts) count *= size;
  return counts;
}

}  // namespace

Team::Part& TeamContext::part() {
  if (!part_) part_.emplace(team_, size_, "context");
  return *part_;
}

at::Tensor TeamContext::gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[0] = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const bool equal = std::all_of(counts.begin(), counts.end(), [&](std::int64_t n) { return n == counts.front(); });
  if (!equal) {  // a gather wants equal pieces; this moves as many bytes as one without padding would
    const std::int64_t row = own.size(0) == 0 ? 0 : own.numel() / own.size(0);
    const std::vector<std::int64_t> send(counts.size(), own.numel());
    return exchange(own.contiguous().view({-1}).repeat({size_}), send, times(counts, row)).view(sizes);
  }
  const at::Tensor all = at::empty(sizes, own.options());
  at::Tensor mine = bytes_in(own);
  std::vector<at::Tensor> pieces = bytes_in(all).chunk(size_);
  part().start_all_gather(pieces, mine, kPieces).wait();
  return all;
}

at::Tensor TeamContext::exchange(const at::Tensor& own, const std::vector<std::int64_t>& send,
                                 const std::vector<std::int64_t>& receive) {
  const auto size = static_cast<std::int64_t>(own.element_size());
  at::Tensor theirs = at::empty({std::accumulate(receive.begin(), receive.end(), std::int64_t{0})}, own.options());
  at::Tensor mine = bytes_in(own), got = bytes_in(theirs);
  part().start_all_to_all(got, mine, times(receive, size), times(send, size), kPieces).wait();
  return theirs;
}

}  // namespace mhla::distributed
