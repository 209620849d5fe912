#include "tests/gpu/emulator/emulator.h"

#undef threadIdx
#undef blockIdx
#undef gridDim

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

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

namespace emulator {

Thread current;

namespace {

Order order_of_environment() {
  const char* name = std::getenv("MHLA_EMULATOR_ORDER");
  if (name == nullptr || std::strcmp(name, "forward") == 0) return Order::kForward;
  return std::strcmp(name, "backward") == 0 ? Order::kBackward : Order::kShuffled;
}

}  // namespace

Order order = order_of_environment();

namespace {

constexpr int kWarp = 32, kMaxThreads = 128, kMaxExchange = 8;
constexpr std::size_t kStack = 64 << 10;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  std::unique_ptr<std::byte[]> stack{new std::byte[kStack]};
  State state = State::kDone;
  int exchanges = 0;
};

struct Warp {
  float values[2][kWarp * kMaxExchange];
};

Fiber fibers[kMaxThreads];
Warp warps[kMaxThreads / kWarp];
void* scheduler = nullptr;
int running = 0, threads_of_block = 0;
bool all_true = true, last_all_true = true;
void (*body_of_block)(const void*) = nullptr;
const void* job_of_block = nullptr;

void leave(State state) {
  fibers[running].state = state;
  emulator_switch(&fibers[running].stack_pointer, scheduler);
}

void fiber_main() {
  body_of_block(job_of_block);
  leave(State::kDone);
  std::abort();
}

void start(Fiber& fiber) {
  auto top = reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStack) & ~std::uintptr_t{15};
  auto** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // keeps the stack aligned as after a call
  *--stack = reinterpret_cast<void*>(&fiber_main);
  for (int saved = 0; saved < 6; ++saved) *--stack = nullptr;
  fiber.stack_pointer = stack;
  fiber.state = State::kReady;
  fiber.exchanges = 0;
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

// Lets those go on whom everybody of their block or warp has joined.
bool release() {
  int waiting = 0, done = 0;
  bool any = false;
  for (int t = 0; t < threads_of_block; ++t) {
    waiting += fibers[t].state == State::kAtBlock;
    done += fibers[t].state == State::kDone;
  }
  if (waiting > 0 && waiting + done == threads_of_block) {
    last_all_true = all_true, all_true = true;
    for (int t = 0; t < threads_of_block; ++t) {
      if (fibers[t].state == State::kAtBlock) fibers[t].state = State::kReady;
    }
    return true;
  }
  for (int first = 0; first < threads_of_block; first += kWarp) {
    bool complete = true;
    for (int t = first; t < first + kWarp; ++t) complete = complete && fibers[t].state == State::kAtWarp;
    for (int t = first; t < first + kWarp && complete; ++t) fibers[t].state = State::kReady;
    any = any || complete;
  }
  return any;
}

void run_block() {
  for (int t = 0; t < threads_of_block; ++t) start(fibers[t]);
  const std::vector<int> turn = sequence(threads_of_block);
  const dim3 block = current.blockIdx;
  do {
    for (const int t : turn) {
      if (fibers[t].state != State::kReady) continue;
      running = t;
      current.threadIdx = dim3(static_cast<unsigned>(t), 0, 0);
      current.blockIdx = block;
      emulator_switch(&scheduler, fibers[t].stack_pointer);
    }
  } while (release());
  for (int t = 0; t < threads_of_block; ++t) {
    if (fibers[t].state == State::kDone) continue;
    std::fprintf(stderr, "emulator: thread %d waits at a barrier that others never reach\n", t);
    std::abort();
  }
}

}  // namespace

void run(dim3 grid, int threads, void (*body)(const void*), const void* job) {
  threads_of_block = threads, body_of_block = body, job_of_block = job;
  const int blocks = static_cast<int>(grid.x * grid.y * grid.z);
  current.gridDim = grid;
  for (const int index : sequence(blocks)) {
    const auto b = static_cast<unsigned>(index);
    current.blockIdx = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    run_block();
  }
}

bool block_barrier(bool value) {
  all_true = all_true && value;
  leave(State::kAtBlock);
  return last_all_true;
}

const float* warp_exchange(const float* mine, int count) {
  Fiber& fiber = fibers[running];
  float* const values = warps[running / kWarp].values[fiber.exchanges++ % 2];
  std::memcpy(values + running % kWarp * count, mine, static_cast<std::size_t>(count) * sizeof(float));
  leave(State::kAtWarp);
  return values;
}

}  // namespace emulator
