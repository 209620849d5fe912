// What tests of the program expect alike.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "mhla/io/json.h"
#include "mhla/testing/messages.h"
#include "tests/cli/program.h"

namespace mhla {

// Exit code 2, and one line with all of these parts.
inline void expect_refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.code, 2) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  for (const std::string& part : parts) EXPECT_TRUE(has(run.err, part)) << part << " in " << run.err;
}

// Whether `mhla doctor` lists AVX-512 BF16, which --precision bf16 needs on a CPU.
inline bool cpu_has_bf16() {
  const JsonValue facts = parse_json(run_program({"doctor", "--json"}).out, "doctor");
  const JsonValue& features = facts.at("cpu").at("features");
  for (std::size_t i = 0; i < features.size(); ++i)
    if (features.at(i).as_string() == "avx512_bf16") return true;
  return false;
}

// While it lives no file can have more bytes, for programs that are started too: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &kept_);
    rlimit small = kept_;
    small.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &kept_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit kept_{};
  void (*handler_)(int);
};

}  // namespace mhla
