// Both kinds are one stream of pieces: packed ones end at a document's end, concatenated ones are all `length` long.
#include "mhla/data/token_loader.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {

TokenLoader::TokenLoader(TokenSet set, TokenLoaderOptions options) : set_(std::move(set)), options_(options) {
  const TokenLoaderOptions& o = options_;
  if (o.batch_size < 1) fail("token loader: batch_size is ", o.batch_size, ", expected at least 1");
  if (o.length < 1) fail("token loader: length is ", o.length, ", expected at least 1");
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks)
    fail("token loader: rank ", o.rank, " of ", o.ranks, " ranks, expected 0 to ranks - 1");
  if (o.per_rank < 1) fail("token loader: per_rank is ", o.per_rank, ", expected at least 1");
  const std::int64_t parts = o.packed ? set_.documents() : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t end = o.packed ? set_.document_begin(part + 1) : set_.tokens();
    for (std::int64_t begin = o.packed ? set_.document_begin(part) : 0; begin < end; begin += o.length) {
      const std::int64_t count = std::min(o.length, end - begin);
      if (!o.packed && count < o.length) break;
      pieces_.push_back({begin, count});
      last_.push_back(begin + count == end ? 1 : 0);
      stream_ += count;
    }
  }
  if (stream_ < step())
    fail("token loader: ", set_.folder(), " has ", stream_, " tokens, fewer than a batch of ", step());
  if (o.start.epoch < 0 || o.start.position < 0 || o.start.position % step() != 0)
    fail("token loader: start is epoch ", o.start.epoch, ", position ", o.start.position, ", expected a multiple of ",
         step());
  at_ = o.start;
}

void TokenLoader::plan(std::int64_t epoch) {
  order_ = epoch_order(static_cast<std::int64_t>(pieces_.size()), options_.seed, epoch, options_.shuffle, 1);
  places_.assign(1, 0);
  for (const std::int64_t piece : order_)
    places_.push_back(places_.back() + pieces_[static_cast<std::size_t>(piece)].count);
  planned_ = epoch;
}

void TokenLoader::next(TokenBatch& batch) {
  const TokenLoaderOptions& o = options_;
  if (turn_ == 0 && at_.position + step() > stream_) at_ = {at_.epoch + 1, 0};
  if (planned_ != at_.epoch) plan(at_.epoch);
  const std::int64_t size = o.batch_size * o.length, begin = at_.position + (o.rank * o.per_rank + turn_) * size;
  batch.rows = o.packed ? 1 : o.batch_size;
  batch.length = o.packed ? size : o.length;
  batch.tokens.resize(static_cast<std::size_t>(size));
  batch.targets.resize(static_cast<std::size_t>(size));
  batch.cu_seqlens.clear();
  const std::int64_t behind = set_.info().document_token.value_or(kNoTarget);
  auto at = static_cast<std::size_t>(std::upper_bound(places_.begin(), places_.end(), begin) - places_.begin() - 1);
  for (std::int64_t done = 0; done < size; ++at) {
    const auto index = static_cast<std::size_t>(order_[at]);
    const Piece& piece = pieces_[index];
    const std::int64_t skip = begin + done - places_[at], count = std::min(piece.count - skip, size - done);
    const std::int64_t first = piece.begin + skip;
    set_.copy(first, count, batch.tokens.data() + done);
    const bool ends = last_[index] != 0 && skip + count == piece.count;
    set_.copy(first + 1, ends ? count - 1 : count, batch.targets.data() + done);
    if (ends) batch.targets[static_cast<std::size_t>(done + count - 1)] = behind;
    if (o.packed) batch.cu_seqlens.push_back(done);
    done += count;
  }
  if (o.packed) batch.cu_seqlens.push_back(size);
  batch.epoch = at_.epoch;
  turn_ = (turn_ + 1) % o.per_rank;
  if (turn_ == 0) {
    at_.position += step();
    if (at_.position + step() > stream_) at_ = {at_.epoch + 1, 0};
  }
  batch.next = at_;
}

}  // namespace mhla
