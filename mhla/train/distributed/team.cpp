// Failures travel through the store (watch.h), not through Gloo: a rank that waits in a collective learns within half a
// second why it will never end, and leaves. The timeouts of Gloo and NCCL are longer than ours and never come first.
#include "mhla/train/distributed/team.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/ops/torch_error.h"
#include "mhla/train/distributed/watch.h"

namespace mhla::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuiet = 1.5;    // seconds without a sign of life, six times the usual
constexpr double kAnswer = 10.0;  // seconds that a store may take for one small question

std::string names_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += str(i > 0 ? ", " : "", ranks[i]);
  return text;
}

std::string here_key(int rank) { return str("here/", rank); }

// Longer and longer naps: nothing to speak of after a short wait, a millisecond after a long one.
void nap(Clock::time_point since) {
  const double seconds = std::clamp(seconds_since(since) / 8.0, 20e-6, 1e-3);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

at::Tensor bytes_view(void* data, std::int64_t count) {
  return at::from_blob(data, {count}, at::TensorOptions(at::kByte));
}

// Gloo writes to the connection of a rank that has died, which would end this process before it can say so. A program
// that wants the signal has its own handler, which stays.
void outlive_other_ranks() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

Team::Team(const World& world, double timeout_s, double meet_s) : world_(world), timeout_s_(timeout_s) {
  outlive_other_ranks();
  const auto store_at = [&] { return str("the store at ", world_.address, ":", world_.port); };
  prefix_ = str("mhla/", world_.restarts);  // a job that was started again finds nothing of before
  const bool serves = world_.leads() && !world_.store_is_served;
  try {
    store_ = open_store(world_, kMeet, serves);
    watch_ = std::make_unique<Watch>(world_, prefixed(prefix_, open_store(world_, kMeet, /*serve=*/false)));
  } catch (const std::exception& error) {
    throw RankFailed(str("rank ", world_.rank, ": ", store_at(),
                         serves ? " cannot be served: " : " does not answer: ", ops::short_reason(error)));
  }
  meet(meet_s);
  try {
    gloo_ = open_gloo(world_, prefixed(prefix_ + "/gloo", store_), timeout_s_ + 60.0);
  } catch (const std::exception& error) {
    fail_lost("the first connection", ops::short_reason(error));
  }
}

std::string Team::use_device(const at::Device& device) {
  // What each rank has: its card, or why not.
  const std::string missing = device.is_cuda() ? nccl_missing() : "the device is no GPU";
  const std::vector<std::string> all = gather_text(missing.empty() ? card_of(device) : "-" + missing, "devices");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].rfind('-', 0) == 0) return all[rank].substr(1);
    for (std::size_t other = 0; other < rank; ++other)
      if (all[other] == all[rank]) return str("ranks ", other, " and ", rank, " have one card, expected one for each");
  }
  try {
    nccl_ = open_nccl(world_, prefixed(prefix_ + "/nccl", store_), timeout_s_ + 60.0);
  } catch (const std::exception& error) {
    fail_lost("the first connection", ops::short_reason(error));
  }
  return {};
}

Collectives& Team::for_tensor(const at::Tensor& tensor) const { return nccl_ && tensor.is_cuda() ? *nccl_ : *gloo_; }

void Team::meet(double meet_s) {
  const auto start = Clock::now();
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_.size; ++rank) keys.push_back(here_key(rank));
  watch_->ask([me = here_key(world_.rank)](c10d::Store& store) { store.set(me, bytes_of("1")); }, kAnswer);
  std::vector<int> missing;
  do {
    auto now = std::make_shared<std::vector<int>>();
    const bool answered = watch_->ask(
        [now, keys](c10d::Store& store) {
          if (store.check(keys)) return;
          for (std::size_t rank = 0; rank < keys.size(); ++rank)
            if (!store.check({keys[rank]})) now->push_back(static_cast<int>(rank));
        },
        kAnswer);
    if (answered && now->empty()) return;
    if (answered) missing = *now;
    if (const std::optional<Failure> failure = watch_->failure()) fail_as(*failure);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (seconds_since(start) < meet_s);
  failed_ = true;
  const std::string who = missing.empty() ? "rank 0, which serves the store," : names_of(missing);
  throw RankFailed(str(who, " did not come within ", meet_s, " s, expected ", world_.size, " ranks"));
}

Team::~Team() {
  if (std::uncaught_exceptions() > 0) failed_ = true;
  if (!watch_) return;
  auto left = std::make_shared<std::int64_t>(0);
  const auto count = [left](std::int64_t more) {
    return [left, more](c10d::Store& store) { *left = store.add("left", more); };
  };
  bool answers = watch_->ask(count(1), 2.0);
  const bool serves = world_.leads() && !world_.store_is_served;  // the others ask it up to their end
  const auto start = Clock::now();
  while (serves && answers && *left < world_.size && seconds_since(start) < (failed_ ? 2.0 : 10.0)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    answers = watch_->ask(count(0), 2.0);
  }
  // Collectives that can never end: their threads stay, and the process ends around them.
  if (failed_) static_cast<void>(gloo_.release()), static_cast<void>(nccl_.release());
}

// ---- Waiting

void Team::Pending::wait() {
  if (!work_) return;
  const WorkPtr work = std::move(work_);
  team_->wait(*work, what_);
}

void Team::wait(c10d::Work& work, const char* what) {
  const auto start = Clock::now();
  while (!work.isCompleted()) {
    nap(start);
    const double waited = seconds_since(start);
    if (waited < std::min(0.2, timeout_s_ / 4)) continue;
    if (const std::optional<Failure> failure = watch_->failure()) fail_as(*failure);
    if (waited > std::min(1.0, timeout_s_ / 4)) watch_->look();
    if (waited > timeout_s_) fail_late(what, waited);
  }
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail_lost(what, ops::short_reason(error));
  }
}

void Team::fail_as(const Failure& failure) {
  failed_ = true;
  const std::string text = str("rank ", failure.rank, " failed: ", failure.reason);
  if (failure.mistake) throw Error(text);
  throw RankFailed(text);
}

void Team::fail_late(const char* what, double seconds) {
  const double quiet = std::min(kQuiet, timeout_s_ / 2);
  std::vector<int> ranks = watch_->quiet_for(quiet);
  std::string how = " does not answer";
  if (watch_->store_quiet_for() > quiet) {
    ranks = {0};
    if (world_.store_is_served) ranks.clear(), how = str("the store at ", world_.address, " does not answer");
  } else if (ranks.empty()) {
    ranks = watch_->behind(), how = " is alive, but has not come";
  }
  const std::string who = ranks.empty() ? "" : names_of(ranks);
  const std::string reason = str(who, how, " (waited ", static_cast<int>(seconds), " s for ", what, ")");
  watch_->report({ranks.empty() ? 0 : ranks.front(), reason});
  failed_ = true;
  throw RankFailed(reason);
}

void Team::fail_lost(const char* what, const std::string& reason) {
  watch_->look();
  const auto start = Clock::now();
  std::vector<int> quiet;
  while (quiet.empty() && seconds_since(start) < 2 * kQuiet) {
    if (const std::optional<Failure> failure = watch_->failure()) fail_as(*failure);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    quiet = watch_->quiet_for(kQuiet);
    if (watch_->store_quiet_for() > kQuiet && !world_.store_is_served) quiet = {0};
  }
  // The connection may be that of a rank which knew before this one, and has said so.
  if (const std::optional<Failure> failure = watch_->failure_now()) fail_as(*failure);
  const std::string text = quiet.empty() ? str("the connection to another rank was lost in ", what, ": ", reason)
                                         : str(names_of(quiet), " is gone (in ", what, ")");
  watch_->report({quiet.empty() ? world_.rank : quiet.front(), text});
  failed_ = true;
  throw RankFailed(text);
}

bool Team::leave_with(const std::string& reason, bool my_own, bool mistake) {
  failed_ = true;
  auto told = std::make_shared<std::int64_t>(1);
  watch_->ask([told](c10d::Store& store) { *told = store.add(kTold, 1); }, 1.0);
  if (my_own) watch_->report({world_.rank, reason, mistake});
  return *told == 1;
}

// ---- Collectives

Team::Pending Team::start_sum(at::Tensor& tensor, const char* what) {
  watch_->begin_collective();
  return {*this, for_tensor(tensor).all_reduce(tensor), what};
}

Team::Pending Team::start_all_gather(std::vector<at::Tensor>& all, at::Tensor& mine, const char* what) {
  watch_->begin_collective();
  return {*this, for_tensor(mine).all_gather(all, mine), what};
}

Team::Pending Team::start_all_to_all(at::Tensor& theirs, at::Tensor& mine, const char* what) {
  watch_->begin_collective();
  return {*this, for_tensor(mine).all_to_all(theirs, mine), what};
}

// ---- Some of the ranks

Team::Part::Part(Team& team, int size, const std::string& name) : team_(team), size_(size) {
  World world = team.world();
  const int number = world.rank / size;
  world.rank %= size, world.size = size;
  const auto store = [&](const char* kind) {
    return prefixed(str(team.prefix_, "/", kind, "/", name, "/", number), team.store_);
  };
  try {
    gloo_ = open_gloo(world, store("gloo"), team.timeout_s_ + 60.0);
    if (team.nccl_) nccl_ = open_nccl(world, store("nccl"), team.timeout_s_ + 60.0);
  } catch (const std::exception& error) {
    team.fail_lost("the connection of a part of the ranks", ops::short_reason(error));
  }
}

Team::Part::~Part() {  // as ~Team
  if (team_.failed_ || std::uncaught_exceptions() > 0)
    static_cast<void>(gloo_.release()), static_cast<void>(nccl_.release());
}

Collectives& Team::Part::for_tensor(const at::Tensor& tensor) const {
  return nccl_ && tensor.is_cuda() ? *nccl_ : *gloo_;
}

Team::Pending Team::Part::start_all_gather(std::vector<at::Tensor>& all, at::Tensor& mine, const char* what) {
  team_.watch_->begin_collective();
  return {team_, for_tensor(mine).all_gather(all, mine), what};
}

Team::Pending Team::Part::start_all_to_all(at::Tensor& theirs, at::Tensor& mine,
                                           const std::vector<std::int64_t>& receive,
                                           const std::vector<std::int64_t>& send, const char* what) {
  team_.watch_->begin_collective();
  return {team_, for_tensor(mine).all_to_all(theirs, mine, receive, send), what};
}

// ---- Small things

void Team::barrier() {
  at::Tensor one = at::ones({1});
  start_sum(one, "a barrier").wait();
}

void Team::max(at::Tensor& tensor, const char* what) {
  watch_->begin_collective();
  Pending(*this, for_tensor(tensor).all_reduce_max(tensor), what).wait();
}

void Team::copy_from_first(const std::vector<at::Tensor>& tensors, const char* what) {
  const at::NoGradGuard no_gradient;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor host = tensor.detach().cpu().contiguous();
    at::Tensor bytes = bytes_view(host.data_ptr(), static_cast<std::int64_t>(host.nbytes()));
    copy_from(0, bytes, what);
    if (!leads() && host.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(host);
  }
}

void Team::copy_from(int rank, at::Tensor& tensor, const char* what) {
  watch_->begin_collective();
  Pending(*this, for_tensor(tensor).broadcast(tensor, rank), what).wait();
}

std::string Team::text_from_first(const std::string& text, const char* what) {
  at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  copy_from_first({length}, what);
  std::string copy(static_cast<std::size_t>(length.item<std::int64_t>()), ' ');
  if (leads()) copy = text;
  if (!copy.empty()) copy_from_first({bytes_view(copy.data(), static_cast<std::int64_t>(copy.size()))}, what);
  return copy;
}

std::vector<std::string> Team::gather_text(const std::string& mine, const char* what) {
  const auto all_of = [&](at::Tensor piece) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(at::empty_like(piece));
    start_all_gather(all, piece, what).wait();
    return all;
  };
  std::int64_t longest = 0;
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& length : all_of(at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong))) {
    lengths.push_back(length.item<std::int64_t>());
    longest = std::max(longest, lengths.back());
  }
  if (longest == 0) return std::vector<std::string>(static_cast<std::size_t>(size()));
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  std::vector<std::string> texts;
  for (const at::Tensor& bytes : all_of(padded))
    texts.emplace_back(static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(lengths[texts.size()]));
  return texts;
}

std::vector<std::vector<double>> Team::gather(const std::vector<double>& mine, const char* what) {
  std::string bytes(mine.size() * sizeof(double), ' ');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  std::vector<std::vector<double>> all;
  for (const std::string& text : gather_text(bytes, what)) {
    all.emplace_back(text.size() / sizeof(double));
    std::memcpy(all.back().data(), text.data(), text.size());
  }
  return all;
}

std::vector<double> Team::sum(const std::vector<double>& mine, const char* what) {
  std::vector<double> total(mine.size(), 0.0);
  for (const std::vector<double>& part : gather(mine, what)) {
    if (part.size() != total.size())
      throw RunFailed(str("ranks have ", part.size(), " and ", total.size(), " numbers of ", what));
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  return total;
}

// ---- Rank 0 alone

void Team::on_first(const std::function<void()>& work, const char* what) {
  const std::string key = str("first/", firsts_++);
  watch_->begin_collective();
  if (leads()) {
    const auto tell = [&](const std::string& outcome) {
      watch_->ask([key, outcome](c10d::Store& store) { store.set(key, bytes_of(outcome)); }, kAnswer);
    };
    try {
      work();
    } catch (const Error& error) {
      tell(str("E", error.what()));
      throw;
    } catch (const std::exception& error) {
      tell(str("F", ops::short_reason(error)));
      throw;
    } catch (...) {
      tell("Fstopped");
      throw;
    }
    tell(".");
    return;
  }
  const auto start = Clock::now();
  for (;;) {
    auto outcome = std::make_shared<std::string>();
    watch_->ask(
        [outcome, key](c10d::Store& store) {
          if (!store.check({key})) return;
          const std::vector<std::uint8_t> value = store.get(key);
          outcome->assign(value.begin(), value.end());
        },
        kAnswer);
    if (outcome->size() > 1) failed_ = true;
    if (*outcome == ".") return;
    if (outcome->rfind("E", 0) == 0) throw Error(outcome->substr(1));
    if (outcome->rfind("F", 0) == 0) throw RunFailed(outcome->substr(1));
    if (const std::optional<Failure> failure = watch_->failure()) fail_as(*failure);
    const double waited = seconds_since(start);
    if (waited > 1.0) watch_->look();
    const std::vector<int> quiet = watch_->quiet_for(timeout_s_);
    if (watch_->store_quiet_for() > timeout_s_ || (!quiet.empty() && quiet.front() == 0)) fail_late(what, waited);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(waited / 8, 0.002, 0.2)));
  }
}

void Team::first_then_rest(const std::function<void()>& work, const char* what) {
  barrier();  // nobody looks at what is being made
  on_first(work, what);
  if (!leads()) work();
}

}  // namespace mhla::distributed
