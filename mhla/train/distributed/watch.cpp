#include "mhla/train/distributed/watch.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>

#include "mhla/core/seconds.h"

namespace mhla::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBeat(250);
constexpr const char* kMistake = " mistake";  // behind the rank in what is reported
constexpr double kSilent = 1.2;               // seconds: a store that has not answered for so long is not waited for

std::string alive_key(int rank) { return str("alive/", rank); }

}  // namespace

struct Watch::State {
  struct Question {
    std::function<void(c10d::Store&)> ask;
    bool done = false;
  };
  struct Seen {
    std::string text;
    Clock::time_point changed;
    std::uint64_t collectives = 0;
  };

  State(const World& w, StorePtr s) : world(w), store(std::move(s)), answered(Clock::now()) {}

  void loop() {
    try {
      for (std::uint64_t beat = 1; serve_questions(); ++beat) tell_and_read(beat);
    } catch (const std::exception&) {  // the store is gone: whoever waits learns it from store_quiet_for()
    }
    const std::lock_guard lock(mutex);
    ended = true;
    wake.notify_all();
  }

  // Until the next beat is due; false: the watch is over.
  bool serve_questions() {
    std::unique_lock lock(mutex);
    const auto until = Clock::now() + kBeat;
    for (;;) {
      wake.wait_until(lock, until, [&] { return stopping || !questions.empty(); });
      if (stopping) return false;
      if (questions.empty()) return true;
      const std::shared_ptr<Question> next = questions.front();
      questions.pop_front();
      lock.unlock();
      next->ask(*store);
      lock.lock();
      next->done = true;
      answered = Clock::now();
      wake.notify_all();
    }
  }

  void tell_and_read(std::uint64_t beat) {
    std::uint64_t mine = 0;
    bool look = false, known = false;
    {
      const std::lock_guard lock(mutex);
      mine = collectives, look = looking, known = failed.has_value();
    }
    store->set(alive_key(world.rank), bytes_of(str(beat, " ", mine)));
    if (!known && store->check({kFailed})) read_failure();
    for (int rank = 0; look && rank < world.size; ++rank) {
      if (rank == world.rank) continue;
      const std::string key = alive_key(rank);
      const std::vector<std::uint8_t> value = store->check({key}) ? store->get(key) : std::vector<std::uint8_t>();
      const std::lock_guard lock(mutex);
      Seen& other = seen[static_cast<std::size_t>(rank)];
      const std::string text(value.begin(), value.end());
      if (text == other.text) continue;
      other.text = text, other.changed = Clock::now();
      std::uint64_t theirs = 0;
      std::istringstream(text) >> theirs >> other.collectives;
    }
    const std::lock_guard lock(mutex);
    answered = Clock::now();
  }

  // How long to wait for an answer. Holds the mutex.
  [[nodiscard]] std::chrono::duration<double> patience(double seconds) const {
    return std::chrono::duration<double>(seconds_since(answered) > kSilent ? 0.01 : seconds);
  }

  void read_failure() {
    const std::vector<std::uint8_t> value = store->get(kFailed);
    const std::string text(value.begin(), value.end());
    const std::size_t line = text.find('\n');
    const std::lock_guard lock(mutex);
    if (line == std::string::npos) return;
    failed = Failure{std::atoi(text.c_str()), text.substr(line + 1), text.substr(0, line).ends_with(kMistake)};
  }

  const World world;
  const StorePtr store;
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<Question>> questions;
  bool stopping = false, ended = false, looking = false;
  std::uint64_t collectives = 0;
  std::optional<Failure> failed;
  std::vector<Seen> seen;  // by rank, once looking
  Clock::time_point answered;
};

Watch::Watch(const World& world, StorePtr store) : state_(std::make_shared<State>(world, std::move(store))) {
  std::thread([state = state_] { state->loop(); }).detach();
}

Watch::~Watch() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  // A store that does not answer keeps the thread; it is left alone then.
  state_->wake.wait_for(lock, state_->patience(1.0), [&] { return state_->ended; });
}

void Watch::begin_collective() {
  const std::lock_guard lock(state_->mutex);
  ++state_->collectives;
}

void Watch::look() {
  const std::lock_guard lock(state_->mutex);
  if (state_->looking) return;
  state_->looking = true;
  state_->seen.assign(static_cast<std::size_t>(state_->world.size), {.text = "", .changed = Clock::now()});
}

std::optional<Failure> Watch::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed;
}

std::optional<Failure> Watch::failure_now() {
  State* state = state_.get();  // the thread that answers shares it
  ask(
      [state](c10d::Store& store) {
        if (store.check({kFailed})) state->read_failure();
      },
      1.0);
  return failure();
}

std::vector<int> Watch::quiet_for(double seconds) const {
  const std::lock_guard lock(state_->mutex);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < state_->seen.size(); ++rank)
    if (static_cast<int>(rank) != state_->world.rank && seconds_since(state_->seen[rank].changed) >= seconds)
      ranks.push_back(static_cast<int>(rank));
  return ranks;
}

std::vector<int> Watch::behind() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < state_->seen.size(); ++rank)
    if (static_cast<int>(rank) != state_->world.rank && state_->seen[rank].collectives < state_->collectives)
      ranks.push_back(static_cast<int>(rank));
  return ranks;
}

double Watch::store_quiet_for() const {
  const std::lock_guard lock(state_->mutex);
  return seconds_since(state_->answered);
}

bool Watch::ask(const std::function<void(c10d::Store&)>& question, double timeout_s) {
  const auto asked = std::make_shared<State::Question>(State::Question{question});
  std::unique_lock lock(state_->mutex);
  state_->questions.push_back(asked);
  state_->wake.notify_all();
  state_->wake.wait_for(lock, state_->patience(timeout_s), [&] { return asked->done || state_->ended; });
  return asked->done;
}

void Watch::report(const Failure& failure) {
  const std::string text = str(failure.rank, failure.mistake ? kMistake : "", "\n", failure.reason);
  ask([text](c10d::Store& store) { store.compareSet(kFailed, {}, bytes_of(text)); }, 1.0);
}

}  // namespace mhla::distributed
