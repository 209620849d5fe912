// Signals while a StopSignal lives.
#include "mhla/train/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>

namespace mhla::train {
namespace {

TEST(StopSignals, TheFirstIsRemembered) {
  const StopSignal stop;
  EXPECT_EQ(stop.number(), 0);
  leave_when_stopped();
  ASSERT_EQ(raise(SIGTERM), 0);
  EXPECT_EQ(stop.number(), SIGTERM);
  EXPECT_STREQ(stop.name(), "SIGTERM");
  EXPECT_THROW(leave_when_stopped(), Stopped);
}

ucontext_t test_context, narrow_context;
extern "C" void interrupt_itself() { kill(getpid(), SIGINT); }

// As within oneDNN's products, where what lies below the stack pointer is somebody's data: here there are a few hundred
// bytes, less than the frame of a handler, and then a page that nobody may write.
TEST(StopSignals, NothingIsWrittenBelowTheStackPointer) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages, page, PROT_NONE), 0);
  const StopSignal stop;
  ASSERT_EQ(kill(getpid(), 0), 0);  // found by the loader before there is little room
  ASSERT_EQ(getcontext(&narrow_context), 0);
  narrow_context.uc_stack.ss_sp = static_cast<std::byte*>(pages) + page;
  narrow_context.uc_stack.ss_size = 768;
  narrow_context.uc_link = &test_context;
  makecontext(&narrow_context, &interrupt_itself, 0);
  ASSERT_EQ(swapcontext(&test_context, &narrow_context), 0);
  EXPECT_EQ(stop.number(), SIGINT);
  munmap(pages, 2 * page);
}

}  // namespace
}  // namespace mhla::train
