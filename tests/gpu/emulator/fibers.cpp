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
constexpr int kBarriers = 16;  // of a block, by number

enum class State : std::uint8_t { kReady, kWaiting, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  State state = State::kDone;
  Wait kind = Wait::kNothing;
  std::uint32_t where = 0;
  int detail = 0;
  bool all_true = true;
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
Barrier barriers[kBarriers];
void* scheduler = nullptr;
int running = -1, threads = 0, alive = 0;
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
void open_if_complete(int id) {
  Barrier& barrier = barriers[id];
  const int expected = barrier.count == 0 ? alive : barrier.count;
  if (barrier.arrived == 0 || barrier.arrived < expected) return;
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    if (fiber.state == State::kWaiting && fiber.kind == Wait::kBlock && static_cast<int>(fiber.where) == id)
      fiber.state = State::kReady, fiber.all_true = barrier.all_true;
  }
  if (running >= 0) fibers[running].all_true = barrier.all_true;
  barrier = {};
}

void fiber_main() {
  body_of_block(job_of_block);
  --alive;
  const int own = running;
  running = -1;  // has not come to any barrier
  for (int id = 0; id < kBarriers; ++id) open_if_complete(id);
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
                    fiber.detail == 0 ? alive : fiber.detail, barriers[fiber.where].arrived);
      break;
    case Wait::kWarp:
      std::snprintf(text, sizeof(text), "%s (%d lanes of the warp are there)", warps[thread / kWarpLanes].what,
                    warps[thread / kWarpLanes].arrived);
      break;
    case Wait::kMbarrier: {
      const BarrierState state = mbarrier_state(fiber.where);
      std::snprintf(text, sizeof(text),
                    "mbarrier at %u, parity %d (its parity is %d; %d of %d arrivals and %lld bytes are missing)",
                    fiber.where - kSharedBase, fiber.detail, state.parity, state.pending, state.count,
                    static_cast<long long>(state.bytes));
      break;
    }
    case Wait::kProducts:
      std::snprintf(text, sizeof(text), "products that other warps of warpgroup %u have not issued", fiber.where);
      break;
    case Wait::kPrevious: std::snprintf(text, sizeof(text), "the previous kernel"); break;
    case Wait::kNothing: break;
  }
  return text;
}

std::string report() {
  std::string all = "nobody can go on:";
  int shown = 0;
  for (int t = 0; t < threads;) {
    if (fibers[t].state != State::kWaiting) {
      ++t;
      continue;
    }
    const std::string text = describe(t);
    int end = t + 1;
    while (end < threads && fibers[end].state == State::kWaiting && describe(end) == text) ++end;
    if (++shown <= 24) {
      all += "\n  threads " + std::to_string(t) + (end > t + 1 ? " to " + std::to_string(end - 1) : "") + ": " + text;
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

// Threads of the block, warp by warp.
std::vector<int> turn_of_threads() {
  std::vector<int> turn;
  for (const int warp : sequence((threads + kWarpLanes - 1) / kWarpLanes)) {
    for (const int lane : sequence(kWarpLanes)) {
      if (const int t = warp * kWarpLanes + lane; t < threads) turn.push_back(t);
    }
  }
  return turn;
}

// Everybody who can goes on, once; but for kForward a warp runs ahead of the others until it has to wait for them.
bool run_ready(const std::vector<int>& turn) {
  bool moved = false;
  const dim3 block = blockIdx, size = blockDim;
  for (std::size_t first = 0; first < turn.size();) {
    bool any = false;
    std::size_t end = first;
    for (; end < turn.size() && turn[end] / kWarpLanes == turn[first] / kWarpLanes; ++end) {
      const int t = turn[end];
      if (fibers[t].state != State::kReady) continue;
      any = moved = true;
      running = t;
      const auto thread = static_cast<unsigned>(t);
      threadIdx = dim3(thread % size.x, thread / size.x % size.y, thread / size.x / size.y);
      blockIdx = block;
      emulator_switch(&scheduler, fibers[t].stack_pointer);
      if (!failure.empty()) throw_failure();
    }
    if (!any || order == Order::kForward) first = end;
  }
  running = -1;
  return moved;
}

void run_block(std::size_t shared_bytes) {
  spoil_shared(shared_bytes);
  begin_copies(), begin_products(), begin_previous();
  for (Warp& warp : warps) warp = {};
  for (Barrier& barrier : barriers) barrier = {};
  for (int t = 0; t < threads; ++t) start(t);
  alive = threads;
  const std::vector<int> turn = turn_of_threads();
  while (alive > 0) {
    if (run_ready(turn) || end_previous() || deliver_copies()) continue;
    failure = report();
    throw_failure();
  }
  check_previous();
  end_copies();
  check_shared_end(shared_bytes);
}

}  // namespace

int this_thread() { return running; }
int threads_of_block() { return threads; }

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
  failure = "thread " + std::to_string(running) + ": " + text;
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

void run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*body)(const void*), const void* job,
         const char* name) {
  threads = static_cast<int>(block.x * block.y * block.z), body_of_block = body, job_of_block = job;
  name_of_kernel = name;
  if (trace) {
    std::fprintf(stderr, "emulator: %s: %u x %u x %u blocks of %d threads, %zu bytes\n", name, grid.x, grid.y, grid.z,
                 threads, shared_bytes);
  }
  gridDim = grid, blockDim = block;
  if (threads > kMostThreads) wrong("%d threads, at most %d", threads, kMostThreads);
  const int blocks = static_cast<int>(grid.x * grid.y * grid.z);
  for (const int index : sequence(blocks)) {
    const auto b = static_cast<unsigned>(index);
    blockIdx = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    run_block(shared_bytes);
  }
}

void wait_for(Wait kind, std::uint32_t where, int detail) {
  Fiber& fiber = fibers[running];
  fiber.kind = kind, fiber.where = where, fiber.detail = detail;
  leave(State::kWaiting);
  fiber.kind = Wait::kNothing;
}

void wake(Wait kind, std::uint32_t where) {
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = fibers[t];
    if (fiber.state == State::kWaiting && fiber.kind == kind && fiber.where == where) fiber.state = State::kReady;
  }
}

bool block_barrier(bool value, int id, int count) {
  if (id < 0 || id >= kBarriers) wrong("barrier %d, there are %d", id, kBarriers);
  if (count % kWarpLanes != 0 || count > threads)
    wrong("barrier %d of %d threads in a block of %d", id, count, threads);
  Barrier& barrier = barriers[id];
  if (barrier.arrived > 0 && barrier.count != count)
    wrong("barrier %d of %d threads, others came to one of %d", id, count, barrier.count);
  barrier.count = count, barrier.all_true = barrier.all_true && value;
  if (++barrier.arrived < (count == 0 ? alive : count)) {
    wait_for(Wait::kBlock, static_cast<std::uint32_t>(id), count);
  } else {
    open_if_complete(id);
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
