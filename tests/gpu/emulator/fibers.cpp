#include "tests/gpu/emulator/fibers.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu/emulator/clusters.h"
#include "tests/gpu/emulator/previous.h"
#include "tests/gpu/emulator/shared.h"

#if !defined(__x86_64__)
#error "the emulator switches stacks by hand, for x86-64 alone"
#endif

// Saves the registers a call must keep on the stack of the caller, and goes on where `to` left off.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

namespace {

bool is(const char* variable, const char* value, bool unset) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? unset : std::strcmp(text, value) == 0;
}

Order order_of_environment() {
  if (is("MHLA_EMULATOR_ORDER", "forward", true)) return Order::kForward;
  return is("MHLA_EMULATOR_ORDER", "backward", false) ? Order::kBackward : Order::kShuffled;
}

int count_of_environment() {
  const char* const text = std::getenv("MHLA_EMULATOR_BLOCKS");
  return text == nullptr ? 2 : std::max(1, std::atoi(text));
}

}  // namespace

Order order = order_of_environment();
const bool trace = is("MHLA_EMULATOR_TRACE", "1", false);
bool late_copies = is("MHLA_EMULATOR_COPIES", "late", true), late_sums = is("MHLA_EMULATOR_SUMS", "late", true);
int multiprocessors = count_of_environment();

namespace {

constexpr std::size_t kStack = 128 << 10;
constexpr int kBarriers = 16;        // of a block, by number
constexpr int kBlockThreads = 1024;  // at most

enum class State : std::uint8_t { kReady, kWaiting, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  State state = State::kDone;
  Wait kind = Wait::kNothing;
  std::uint32_t where = 0;
  int detail = 0;
  bool all_true = true;
  int cluster_phase = -1;  // in which it came to the barrier of the cluster last
};

struct Warp {
  void* lanes[kWarpLanes];
  int arrived = 0;
  Work work = nullptr;
  const char* what = "";
};

struct Barrier {
  int arrived = 0, count = 0;
  bool all_true = true;
};

Fiber fibers[kMostThreads];
Warp warps[kMostThreads / kWarpLanes];
Barrier barriers[kMostBlocks][kBarriers];
void* scheduler = nullptr;
int running = -1, threads = 0, blocks = 1;  // of a block; of a cluster
int alive[kMostBlocks];
struct {
  int arrived = 0, ended = 0, phase = 0;  // those that ended have always arrived
} cluster;
std::string failure;
const char* name_of_kernel = "";
void (*body_of_block)(const void*) = nullptr;
const void* job_of_block = nullptr;

std::byte* stack_of(int thread) {
  static std::byte* const stacks = static_cast<std::byte*>(
      mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return stacks + kStack * static_cast<std::size_t>(thread);
}

void leave(State state) {
  fibers[running].state = state;
  emulator_switch(&fibers[running].stack_pointer, scheduler);
}

// All of the block, when those who have ended need not come any more.
void open_if_complete(int block, int id) {
  Barrier& barrier = barriers[block][id];
  const int expected = barrier.count == 0 ? alive[block] : barrier.count;
  if (barrier.arrived == 0 || barrier.arrived < expected) return;
  for (int t = block * threads; t < (block + 1) * threads; ++t) {
    Fiber& fiber = fibers[t];
    if (fiber.state == State::kWaiting && fiber.kind == Wait::kBlock && static_cast<int>(fiber.where) == id)
      fiber.state = State::kReady, fiber.all_true = barrier.all_true;
  }
  if (running >= 0) fibers[running].all_true = barrier.all_true;
  barrier = {};
}

void arrive_in_cluster(bool for_good) {
  fibers[running].cluster_phase = cluster.phase;
  ++cluster.arrived, cluster.ended += for_good;
  if (cluster.arrived < threads * blocks) return;
  cluster.arrived = cluster.ended, ++cluster.phase;
  wake(Wait::kCluster, 0);
}

void fiber_main() {
  body_of_block(job_of_block);
  const int own = running, block = own / threads;
  --alive[block];
  fibers[own].cluster_phase == cluster.phase ? void(++cluster.ended) : arrive_in_cluster(true);
  running = -1;  // has not come to any barrier
  for (int id = 0; id < kBarriers; ++id) open_if_complete(block, id);
  running = own;
  leave(State::kDone);
  std::abort();
}

void start(int thread) {
  auto top = reinterpret_cast<std::uintptr_t>(stack_of(thread) + kStack) & ~std::uintptr_t{15};
  auto** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // keeps the stack aligned as after a call
  *--stack = reinterpret_cast<void*>(&fiber_main);
  for (int saved = 0; saved < 6; ++saved) *--stack = nullptr;
  fibers[thread] = {};
  fibers[thread].stack_pointer = stack;
  fibers[thread].state = State::kReady;
}

std::vector<int> sequence(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == Order::kBackward) return {numbers.rbegin(), numbers.rend()};
  static std::uint64_t seed = 1;
  for (int i = count - 1; i > 0 && order == Order::kShuffled; --i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::swap(numbers[static_cast<std::size_t>(i)], numbers[(seed >> 33) % static_cast<std::uint64_t>(i + 1)]);
  }
  return numbers;
}

std::string describe(int thread) {
  const Fiber& fiber = fibers[thread];
  char text[200] = "";
  switch (fiber.kind) {
    case Wait::kBlock:
      std::snprintf(text, sizeof(text), "barrier %u of %d threads (%d are there)", fiber.where,
                    fiber.detail == 0 ? alive[thread / threads] : fiber.detail,
                    barriers[thread / threads][fiber.where].arrived);
      break;
    case Wait::kWarp:
      std::snprintf(text, sizeof(text), "%s (%d lanes of the warp are there)", warps[thread / kWarpLanes].what,
                    warps[thread / kWarpLanes].arrived);
      break;
    case Wait::kMbarrier: {
      const BarrierState state = mbarrier_state(fiber.where);
      std::snprintf(text, sizeof(text),
                    "mbarrier at %u, parity %d (its parity is %d; %d of %d arrivals and %lld bytes are missing)",
                    own_address(fiber.where) - kSharedBase, fiber.detail, state.parity, state.pending, state.count,
                    static_cast<long long>(state.bytes));
      break;
    }
    case Wait::kProducts:
      std::snprintf(text, sizeof(text), "products that other warps of warpgroup %u have not issued", fiber.where);
      break;
    case Wait::kPrevious: std::snprintf(text, sizeof(text), "the previous kernel"); break;
    case Wait::kCluster:
      std::snprintf(text, sizeof(text), "barrier of the cluster (%d of %d threads are there)", cluster.arrived,
                    threads * blocks);
      break;
    case Wait::kNothing: break;
  }
  return text;
}

std::string report() {
  std::string all = "nobody can go on:";
  int shown = 0;
  for (int t = 0; t < threads * blocks;) {
    if (fibers[t].state != State::kWaiting) {
      ++t;
      continue;
    }
    const std::string text = describe(t);
    int end = t + 1;
    const int block = t / threads;
    while (end < (block + 1) * threads && fibers[end].state == State::kWaiting && describe(end) == text) ++end;
    if (++shown <= 24) {
      all += "\n  ";
      if (blocks > 1) all += "block " + std::to_string(block) + " of the cluster, ";
      all += "threads " + std::to_string(t % threads);
      if (end > t + 1) all += " to " + std::to_string((end - 1) % threads);
      all += ": " + text;
    }
    t = end;
  }
  return all;
}

[[noreturn]] void throw_failure() {
  char at[300];
  std::snprintf(at, sizeof(at), "%.200s, block (%u, %u, %u): ", name_of_kernel, blockIdx.x, blockIdx.y, blockIdx.z);
  const std::string text = at + failure;
  failure.clear();
  running = -1;
  throw std::runtime_error(text);
}

struct Turn {
  std::vector<int> blocks, warps, lanes;
  dim3 first, size;  // of the cluster
};

// Every lane of a warp that can goes on, once.
bool run_lanes(int block, int warp, const Turn& turn) {
  bool any = false;
  const auto b = static_cast<unsigned>(block);
  const dim3 size = blockDim, cut = turn.size;
  for (const int lane : turn.lanes) {
    const int own = warp * kWarpLanes + lane, t = block * threads + own;
    if (own >= threads || fibers[t].state != State::kReady) continue;
    if (!any) put_in_place(block);
    any = true;
    running = t;
    const auto thread = static_cast<unsigned>(own);
    threadIdx = dim3(thread % size.x, thread / size.x % size.y, thread / size.x / size.y);
    blockIdx = dim3(turn.first.x + b % cut.x, turn.first.y + b / cut.x % cut.y, turn.first.z + b / cut.x / cut.y);
    emulator_switch(&scheduler, fibers[t].stack_pointer);
    if (!failure.empty()) throw_failure();
  }
  running = -1;
  return any;
}
bool run_warp(int block, int warp, const Turn& turn) {  // as far as it can go
  bool any = false;
  while (run_lanes(block, warp, turn)) any = true;
  return any;
}

// One after the other, every block as far as it can go by itself; kForward: its warps step by step.
bool run_blocks(const Turn& turn) {
  bool any = false;
  for (const int block : turn.blocks) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const int warp : turn.warps) {
        if (order == Order::kForward ? run_lanes(block, warp, turn) : run_warp(block, warp, turn)) any = moved = true;
      }
    }
  }
  return any;
}

// The first warps of all blocks before the others of any, whenever they can go on.
bool run_first_warps(const Turn& turn) {
  for (const int warp : turn.warps) {
    for (const int block : turn.blocks) {
      if (run_warp(block, warp, turn)) return true;
    }
  }
  return false;
}

void run_cluster(std::size_t shared_bytes, dim3 first, dim3 size) {
  spoil_shared(shared_bytes, blocks);
  begin_copies(), begin_products(), begin_previous();
  for (int t = 0; t < threads_of_cluster(); t += kWarpLanes) warps[t / kWarpLanes] = {};
  for (int block = 0; block < blocks; ++block) {
    for (Barrier& barrier : barriers[block]) barrier = {};
    alive[block] = threads;
  }
  cluster = {};
  for (int t = 0; t < threads_of_cluster(); ++t) start(t);
  const Turn turn{sequence(blocks), sequence((threads + kWarpLanes - 1) / kWarpLanes), sequence(kWarpLanes), first,
                  size};
  const auto run_some = order == Order::kShuffled ? run_first_warps : run_blocks;
  while (cluster.ended < threads_of_cluster()) {
    if (run_some(turn) || end_previous() || deliver_copies()) continue;
    failure = report();
    throw_failure();
  }
  check_previous();
  end_copies();
  check_shared_end(shared_bytes, blocks);
}

}  // namespace

int this_thread() { return running; }
int threads_of_cluster() { return threads * blocks; }
bool block_ended(int block) { return alive[block] == 0; }

int cluster_rank() { return running / threads; }
void cluster_arrive() {
  if (fibers[running].cluster_phase == cluster.phase) wrong("barrier.cluster.arrive: a second time without a wait");
  arrive_in_cluster(false);
}
void cluster_wait() {
  const int phase = fibers[running].cluster_phase;
  if (phase < 0) wrong("barrier.cluster.wait before an arrival");
  while (cluster.phase == phase) wait_for(Wait::kCluster, 0, 0);
}

void wrong(const char* format, ...) {
  char text[400];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (running < 0) {
    failure = text;
    throw_failure();
  }
  failure = "thread " + std::to_string(running % threads) + ": " + text;
  leave(State::kWaiting);
  std::abort();
}

const char* kernel_name(void* kernel) {
  static std::string name;
  Dl_info found{};
  if (dladdr(kernel, &found) == 0 || found.dli_sname == nullptr || found.dli_saddr != kernel) return "kernel";
  int status = 0;
  char* const plain = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status);
  name = plain != nullptr ? plain : found.dli_sname;
  std::free(plain);
  return name.c_str();
}

void run(dim3 grid, dim3 block, dim3 together, std::size_t shared_bytes, void (*body)(const void*), const void* job,
         const char* name) {
  threads = static_cast<int>(block.x * block.y * block.z), body_of_block = body, job_of_block = job;
  blocks = static_cast<int>(together.x * together.y * together.z);
  name_of_kernel = name;
  if (trace) {
    std::fprintf(stderr, "emulator: %s: %u x %u x %u blocks of %d threads, %zu bytes\n", name, grid.x, grid.y, grid.z,
                 threads, shared_bytes);
  }
  gridDim = grid, blockDim = block;
  if (threads > kBlockThreads) wrong("%d threads, at most %d", threads, kBlockThreads);
  if (blocks > kMostBlocks || grid.x % together.x != 0 || grid.y % together.y != 0 || grid.z % together.z != 0)
    wrong("clusters of %u x %u x %u blocks of %u x %u x %u", together.x, together.y, together.z, grid.x, grid.y,
          grid.z);
  if (blocks > 1 && (threads % kGroupLanes != 0 || threads_of_cluster() > kMostThreads))
    wrong("clusters of %d blocks of %d threads: the emulator has none such", blocks, threads);
  const dim3 clusters(grid.x / together.x, grid.y / together.y, grid.z / together.z);
  for (const int index : sequence(static_cast<int>(clusters.x * clusters.y * clusters.z))) {
    const auto c = static_cast<unsigned>(index);
    run_cluster(shared_bytes,
                dim3(c % clusters.x * together.x, c / clusters.x % clusters.y * together.y,
                     c / clusters.x / clusters.y * together.z),
                together);
  }
}

void wait_for(Wait kind, std::uint32_t where, int detail) {
  Fiber& fiber = fibers[running];
  fiber.kind = kind, fiber.where = where, fiber.detail = detail;
  leave(State::kWaiting);
  fiber.kind = Wait::kNothing;
}

void wake(Wait kind, std::uint32_t where) {
  for (int t = 0; t < threads_of_cluster(); ++t) {
    Fiber& fiber = fibers[t];
    if (fiber.state == State::kWaiting && fiber.kind == kind && fiber.where == where) fiber.state = State::kReady;
  }
}

bool block_barrier(bool value, int id, int count) {
  if (id < 0 || id >= kBarriers) wrong("barrier %d, there are %d", id, kBarriers);
  if (count % kWarpLanes != 0 || count > threads)
    wrong("barrier %d of %d threads in a block of %d", id, count, threads);
  const int block = running / threads;
  Barrier& barrier = barriers[block][id];
  if (barrier.arrived > 0 && barrier.count != count)
    wrong("barrier %d of %d threads, others came to one of %d", id, count, barrier.count);
  barrier.count = count, barrier.all_true = barrier.all_true && value;
  if (++barrier.arrived < (count == 0 ? alive[block] : count)) {
    wait_for(Wait::kBlock, static_cast<std::uint32_t>(id), count);
  } else {
    open_if_complete(block, id);
  }
  return fibers[running].all_true;
}

void warp_meet(const char* what, void* mine, Work work) {
  Warp& warp = warps[running / kWarpLanes];
  if (warp.arrived > 0 && warp.work != work) wrong("%s, other lanes of its warp are at %s", what, warp.what);
  warp.work = work, warp.what = what;
  warp.lanes[running % kWarpLanes] = mine;
  if (++warp.arrived < kWarpLanes) return wait_for(Wait::kWarp, static_cast<std::uint32_t>(running / kWarpLanes), 0);
  warp.arrived = 0;
  work(warp.lanes);
  const int first = running / kWarpLanes * kWarpLanes;
  for (int t = first; t < first + kWarpLanes; ++t) {
    if (t != running) fibers[t].state = State::kReady;
  }
}

}  // namespace emulator
