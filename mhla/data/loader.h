// Batches from an image set, decoded and augmented by threads ahead of time, in an order fixed by the seed:
// the same bits for every number of threads and prefetched batches, and from any cursor on.
//
// An epoch is one pass over a shuffled order. Batch k covers positions [k B, (k + 1) B) of it; a damaged image leaves
// its batch smaller, it moves no other image.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/data/augment.h"
#include "mhla/data/image_set.h"

namespace mhla {

// Where to go on: the next position of an epoch's order. Two integers, part of a checkpoint.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

struct LoaderOptions {
  std::int64_t batch_size = 128;
  std::int64_t epochs = 0;         // next() is false at the end of the last one; 0: no end
  bool shuffle = true;             // false: the order of the set, every epoch
  bool drop_last = true;           // the rest of an epoch that fills no batch; false for evaluation
  std::uint64_t seed = 0;          // of order and augmentation
  int threads = 0;                 // 0: default_threads()
  int prefetch = 3;                // batches ahead of the caller
  int repeats = 1;                 // repeated augmentation: an image comes so often in a row, an epoch stays as long
  std::int64_t max_damaged = 100;  // different images; one more is an Error
  int rank = 0, ranks = 1;  // of each ranks * per_rank batches, this process takes per_rank, from rank * per_rank on
  int per_rank = 1;
  Augment augment;
  Cursor start;
  std::vector<std::int64_t>
      known_damaged;        // items that were left out before `start`: they count, and are not told again
  bool give_empty = false;  // a batch of which no image can be read is given, not passed over
};

// Everything of one step. Targets: weights[i] of labels[i], the rest of other_labels[i].
struct Batch {
  std::int64_t size = 0;  // 0, with give_empty: no image of it could be read; `damaged` says which, the first time
  int channels = 0, height = 0, width = 0;
  std::vector<float> images;  // [size, channels, height, width]
  std::vector<std::int64_t> labels, other_labels;
  std::vector<float> weights;       // 1 where nothing was mixed
  std::vector<std::int64_t> items;  // indices in the set
  bool mixed = false;
  std::int64_t epoch = 0;
  std::int64_t position = 0;         // of its first item in the epoch's order
  Cursor next;                       // resume here once this batch, the last of its per_rank, has been used
  std::vector<std::string> damaged;  // images left out of this batch, "name: reason", each once in a run
};

class Loader {
 public:
  Loader(ImageSetPtr set, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // False at the end of the last epoch. `batch` gives its memory back: pass the same one again.
  bool next(Batch& batch);

  [[nodiscard]] Cursor cursor() const;  // after the batch that next() gave last
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  [[nodiscard]] std::int64_t damaged() const;  // different images left out so far
  [[nodiscard]] std::vector<std::int64_t> damaged_items() const;
  [[nodiscard]] const ImageSet& set() const;
  [[nodiscard]] const LoaderOptions& options() const;  // with the set's sizes filled in

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The order of an epoch: item of every position. With `shuffle` off, 0, 1, 2, ...
std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle,
                                      int repeats);

}  // namespace mhla
