// Batches in flight form a queue in the order of their delivery. Workers take runs of items from the oldest batch that
// has some left, or plan the next batch; who finishes the last item of a batch closes it (damaged images out, mixing).
// Every random choice belongs to an item or a batch by number, so who does what when changes nothing.
#include "mhla/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/data/augment_item.h"

namespace mhla {
namespace {

constexpr std::size_t kNamedDamage = 5;  // damaged images that an error lists

using Order = std::shared_ptr<const std::vector<std::int64_t>>;

void check_options(const ImageSet& set, LoaderOptions& o) {
  const std::string at = "loader: ";
  if (o.batch_size < 1) fail(at, "batch_size is ", o.batch_size, ", expected at least 1");
  if (o.epochs < 0) fail(at, "epochs is ", o.epochs, ", expected 0 (no end) or more");
  if (o.threads < 0 || o.threads > 4096) fail(at, "threads is ", o.threads, ", expected 0 (default) to 4096");
  if (o.prefetch < 1) fail(at, "prefetch is ", o.prefetch, ", expected at least 1");
  if (o.repeats < 1 || o.repeats > 1000) fail(at, "repeats is ", o.repeats, ", expected 1 to 1000");
  if (o.max_damaged < 0) fail(at, "max_damaged is ", o.max_damaged, ", expected 0 or more");
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks)
    fail(at, "rank ", o.rank, " of ", o.ranks, " ranks, expected 0 to ranks - 1");
  if (o.start.epoch < 0 || o.start.position < 0 || o.start.position > set.size())
    fail(at, "start is epoch ", o.start.epoch, ", position ", o.start.position, ", expected a position up to the ",
         set.size(), " items of ", set.name());
  if (o.per_rank < 1) fail(at, "per_rank is ", o.per_rank, ", expected at least 1");
  if (o.drop_last && set.size() / (o.ranks * o.per_rank) < o.batch_size)
    fail(at, set.name(), " has ", set.size(), " items, fewer than ", o.ranks * o.per_rank, " batches of ", o.batch_size,
         "; choose a smaller batch_size or keep the last batch");
  check_augment(o.augment);
  if (o.augment.channels == 0) o.augment.channels = set.channels();
  for (const auto& [side, of_set, name] :
       {std::tuple{&o.augment.height, set.height(), "height"}, {&o.augment.width, set.width(), "width"}}) {
    if (*side == 0) *side = of_set;
    if (*side == 0) fail(at, "augment.", name, " is 0, but images of ", set.name(), " have different sizes");
  }
  const auto values = static_cast<int>(o.augment.mean.size());
  if (values != 1 && values != o.augment.channels)
    fail(at, values, " values of augment.mean, expected 1 or one for each of ", o.augment.channels, " channels");
  if (o.augment.fit == Fit::kPad && (set.height() > o.augment.height || set.width() > o.augment.width))
    fail(at, "images of ", set.height(), " x ", set.width(), " cannot be padded to ", o.augment.height, " x ",
         o.augment.width, "; resize or crop");
  if (o.threads == 0) o.threads = default_threads();
}

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle,
                                      int repeats) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  if (shuffle) {
    Philox random(seed, Philox::kOrder, epoch, 0);
    for (std::int64_t left = size; left > 1; --left)
      std::swap(order[static_cast<std::size_t>(left - 1)], order[static_cast<std::size_t>(random.below(left))]);
  }
  if (repeats > 1) {  // from the end, so that what is read has not been written yet
    for (std::size_t i = order.size(); i-- > 0;) order[i] = order[i / static_cast<std::size_t>(repeats)];
  }
  return order;
}

struct Loader::State {
  struct Job {
    Order order;
    std::int64_t first = 0;  // position of this rank's first item
    std::int64_t count = 0;
    std::int64_t taken = 0, done = 0;  // guarded by the mutex
    bool ready = false;
    BatchDraw draw;
    Batch batch;
    std::vector<std::string> reasons;  // per item, empty: good
    std::exception_ptr error;          // of the first item that has one
    std::int64_t error_item = 0;
  };

  ImageSetPtr set;
  LoaderOptions options;
  ItemAugmenter augmenter;
  std::int64_t run_length;  // items that a worker takes at once

  std::mutex mutex;
  std::condition_variable work, ready;
  std::deque<std::unique_ptr<Job>> jobs;     // in flight, oldest first
  std::vector<std::unique_ptr<Job>> spares;  // with their memory
  Cursor planned;                            // of the next batch to plan, all ranks together
  int turn = 0;                              // which of this rank's batches there
  Order order;                               // of planned.epoch
  std::int64_t order_epoch = -1;
  bool stopping = false;
  std::exception_ptr worker_error;
  std::vector<std::thread> workers;

  // The caller's side.
  ItemScratch own_scratch;  // where no worker could be started
  Cursor given;
  std::set<std::int64_t> damaged;
  std::vector<std::string> damage_names;
  std::exception_ptr failure;

  State(ImageSetPtr s, LoaderOptions o)
      : set(std::move(s)),
        options(std::move(o)),
        augmenter(options.augment),
        run_length(std::clamp<std::int64_t>(options.batch_size / (4 * options.threads), 1, 64)),
        planned(options.start),
        given(options.start) {
    roll(planned);
    given = planned;
    for (const std::int64_t item : options.known_damaged) {
      if (item < 0 || item >= set->size())
        fail("loader: known_damaged has item ", item, ", expected 0 to ", set->size() - 1);
      damaged.insert(item);
    }
  }

  [[nodiscard]] std::int64_t step() const { return options.batch_size * options.ranks * options.per_rank; }

  // Positions at the end of an epoch that hold no batch belong to the next one.
  void roll(Cursor& cursor) const {
    const std::int64_t left = set->size() - cursor.position;
    if (options.drop_last ? left < step() : left <= 0) cursor = {cursor.epoch + 1, 0};
  }

  [[nodiscard]] bool ended() const { return options.epochs > 0 && planned.epoch >= options.epochs; }

  // Appends the next batch. Holds the mutex: the order of a million items takes some 10 ms, once per epoch.
  void plan() {
    if (order_epoch != planned.epoch) {
      order = std::make_shared<const std::vector<std::int64_t>>(
          epoch_order(set->size(), options.seed, planned.epoch, options.shuffle, options.repeats));
      order_epoch = planned.epoch;
    }
    std::unique_ptr<Job> job = spares.empty() ? std::make_unique<Job>() : std::move(spares.back());
    if (!spares.empty()) spares.pop_back();
    job->order = order;
    job->first = planned.position + (options.rank * options.per_rank + turn) * options.batch_size;
    job->count = std::clamp<std::int64_t>(set->size() - job->first, 0, options.batch_size);
    job->taken = job->done = 0;
    job->error = nullptr;
    job->draw = draw_batch(options.augment, options.seed, planned.epoch, job->first);
    job->reasons.assign(static_cast<std::size_t>(job->count), {});
    Batch& batch = job->batch;
    batch.channels = options.augment.channels;
    batch.height = options.augment.height;
    batch.width = options.augment.width;
    batch.images.resize(static_cast<std::size_t>(job->count * augmenter.item_floats()));
    batch.epoch = planned.epoch;
    batch.position = job->first;
    turn = (turn + 1) % options.per_rank;
    if (turn == 0) {
      planned.position += step();
      roll(planned);
    }
    batch.next = planned;
    job->ready = job->count == 0;
    jobs.push_back(std::move(job));
  }

  void make_item(Job& job, std::int64_t i, ItemScratch& scratch) const {
    const std::int64_t position = job.first + i;
    const std::int64_t item = (*job.order)[static_cast<std::size_t>(position)];
    try {
      set->decode(item, scratch.image);
    } catch (const Error& error) {
      job.reasons[static_cast<std::size_t>(i)] = error.what();
      return;
    }
    try {
      augmenter.augment_item(scratch, job.draw, options.seed, job.batch.epoch, item,
                             static_cast<int>(position % options.repeats),
                             job.batch.images.data() + i * augmenter.item_floats());
    } catch (const Error& error) {  // options that do not go with the image: no damage, and no going on
      fail("loader: ", set->item_name(item), ": ", error.what());
    }
  }

  void make_items(Job& job, std::int64_t begin, std::int64_t end, ItemScratch& scratch) {
    for (std::int64_t i = begin; i < end; ++i) {
      try {
        make_item(job, i, scratch);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (job.error && job.error_item < i) continue;
        job.error = std::current_exception();
        job.error_item = i;
      }
    }
  }

  // Damaged images out, labels in, mixed.
  void close(Job& job) const {
    Batch& batch = job.batch;
    const std::int64_t floats = augmenter.item_floats();
    batch.items.clear();
    batch.labels.clear();
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < job.count; ++i) {
      if (!job.reasons[static_cast<std::size_t>(i)].empty()) continue;
      if (kept != i)
        std::memcpy(batch.images.data() + kept * floats, batch.images.data() + i * floats,
                    static_cast<std::size_t>(floats) * sizeof(float));
      const std::int64_t item = (*job.order)[static_cast<std::size_t>(job.first + i)];
      batch.items.push_back(item);
      batch.labels.push_back(set->label(item));
      ++kept;
    }
    batch.size = kept;
    batch.images.resize(static_cast<std::size_t>(kept * floats));
    batch.mixed = job.draw.mix != BatchDraw::Mix::kNone;
    batch.other_labels.assign(batch.labels.rbegin(), batch.labels.rend());
    batch.weights.assign(static_cast<std::size_t>(kept), static_cast<float>(job.draw.weight));
    if (!batch.mixed) batch.other_labels = batch.labels;
    mix_images(job.draw, kept, batch.channels, batch.height, batch.width, batch.images.data());
  }

  // The oldest batch with items left; plans one where there is room.
  Job* open_job() {
    for (const auto& job : jobs)
      if (job->taken < job->count) return job.get();
    while (static_cast<int>(jobs.size()) < options.prefetch && !ended()) {
      plan();
      if (jobs.back()->count > 0) return jobs.back().get();
      ready.notify_one();
    }
    return nullptr;
  }

  // Ends a worker; what it could not do (memory for a batch) is the caller's to know.
  void loop() {
    try {
      take_work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!worker_error) worker_error = std::current_exception();
      ready.notify_one();
    }
  }

  void take_work() {
    ItemScratch scratch;
    std::unique_lock lock(mutex);
    for (;;) {
      Job* job = nullptr;
      work.wait(lock, [&] { return stopping || (job = open_job()) != nullptr; });
      if (stopping) return;
      make_run(*job, lock, scratch);
    }
  }

  // The next items of a batch. Holds the mutex before and after.
  void make_run(Job& job, std::unique_lock<std::mutex>& lock, ItemScratch& scratch) {
    const std::int64_t begin = job.taken;
    const std::int64_t end = job.taken = std::min(job.count, begin + run_length);
    lock.unlock();
    make_items(job, begin, end, scratch);
    lock.lock();
    job.done += end - begin;
    if (job.done < job.count) return;
    lock.unlock();
    std::exception_ptr trouble;
    try {
      if (!job.error) close(job);
    } catch (...) {
      trouble = std::current_exception();
    }
    lock.lock();
    if (trouble) job.error = trouble;
    job.ready = true;
    ready.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  // Counts what was left out of a batch, in its order; too much of it ends the run.
  void count_damage(const Job& job, Batch& batch) {
    batch.damaged.clear();
    for (std::int64_t i = 0; i < job.count; ++i) {
      const std::string& reason = job.reasons[static_cast<std::size_t>(i)];
      if (reason.empty() || !damaged.insert((*job.order)[static_cast<std::size_t>(job.first + i)]).second) continue;
      batch.damaged.push_back(reason);
      if (damage_names.size() < kNamedDamage) damage_names.push_back(reason);
      if (static_cast<std::int64_t>(damaged.size()) <= options.max_damaged) continue;
      std::string list;
      for (const std::string& one : damage_names) list += str(list.empty() ? "" : "; ", one);
      fail("loader: ", damaged.size(), " damaged images in ", set->name(), ", more than the ", options.max_damaged,
           " that may be left out: ", list, damaged.size() > damage_names.size() ? "; ..." : "");
    }
  }

  // Where there is no end, batches without an image would come for ever.
  void expect_a_good_image(const Job& job) const {
    if (options.epochs > 0 || static_cast<std::int64_t>(damaged.size()) < set->size()) return;
    fail("loader: none of the ", set->size(), " images of ", set->name(),
         " can be read: ", damage_names.empty() ? job.reasons.front() : damage_names.front());
  }

  // The oldest batch, or null at the end.
  std::unique_ptr<Job> take() {
    std::unique_lock lock(mutex);
    for (;;) {
      if (worker_error) std::rethrow_exception(worker_error);
      if (jobs.empty() && ended()) return nullptr;
      if (!jobs.empty() && jobs.front()->ready) break;
      if (!workers.empty()) {
        ready.wait(lock);
      } else if (Job* job = open_job()) {
        make_run(*job, lock, own_scratch);
      }
    }
    std::unique_ptr<Job> job = std::move(jobs.front());
    jobs.pop_front();
    work.notify_all();
    return job;
  }
};

Loader::Loader(ImageSetPtr set, LoaderOptions options) {
  if (!set) fail("loader: set is null");
  check_options(*set, options);
  state_ = std::make_unique<State>(std::move(set), std::move(options));
  try {
    for (int i = 0; i < state_->options.threads; ++i) state_->workers.emplace_back([s = state_.get()] { s->loop(); });
  } catch (const std::system_error&) {  // no more can be started: those that run do the work, or the caller
  } catch (...) {
    state_->stop();
    throw;
  }
}

Loader::~Loader() { state_->stop(); }

bool Loader::next(Batch& batch) {
  State& s = *state_;
  if (s.failure) std::rethrow_exception(s.failure);
  try {
    for (;;) {
      std::unique_ptr<State::Job> job = s.take();
      if (!job) return false;
      if (job->error) std::rethrow_exception(job->error);
      s.count_damage(*job, job->batch);
      s.given = job->batch.next;
      const bool no_image = job->batch.size == 0 || job->count == 0;
      const bool empty = no_image && !(s.options.give_empty && job->count > 0);
      if (empty && job->count > 0) s.expect_a_good_image(*job);
      if (!empty) std::swap(batch, job->batch);
      const std::lock_guard lock(s.mutex);
      s.spares.push_back(std::move(job));
      if (!empty) return true;
    }
  } catch (...) {
    s.failure = std::current_exception();
    throw;
  }
}

Cursor Loader::cursor() const { return state_->given; }

std::int64_t Loader::batches_per_epoch() const {
  const State& s = *state_;
  return s.options.drop_last ? s.set->size() / s.step() : (s.set->size() + s.step() - 1) / s.step();
}

std::int64_t Loader::damaged() const { return static_cast<std::int64_t>(state_->damaged.size()); }
std::vector<std::int64_t> Loader::damaged_items() const { return {state_->damaged.begin(), state_->damaged.end()}; }
const ImageSet& Loader::set() const { return *state_->set; }
const LoaderOptions& Loader::options() const { return state_->options; }

}  // namespace mhla
