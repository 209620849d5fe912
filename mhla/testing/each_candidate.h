// GoogleTest over candidates: one test per candidate of a form, so that one that cannot run on this machine is counted
// as skipped, with its reason, and none passes unseen. Included by tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/testing/run_case.h"

namespace mhla {

class CandidateTest : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (const std::string why = missing_here(GetParam()); !why.empty()) GTEST_SKIP() << GetParam() << ": " << why;
  }
  [[nodiscard]] static RunOptions options() {
    RunOptions run;
    run.candidate = GetParam();
    return run;
  }
  // The case in f32, or in bf16 for a candidate that takes nothing wider. Empty, or why it takes neither.
  static std::string take(Case& c) {
    std::string why;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      c.dtype = dtype, why = steps_aside(c, GetParam(), true);
      if (why.empty()) break;
    }
    return why;
  }
};

inline auto each_candidate(Form form) { return testing::ValuesIn(candidates_of(form)); }
inline std::string candidate_name(const testing::TestParamInfo<std::string_view>& candidate) {
  return std::string(candidate.param);
}

// Instrumented code takes ten times as long and more: it runs every n-th case.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kCaseStep = 8;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kCaseStep = 3;
#else
inline constexpr std::size_t kCaseStep = 1;
#endif

// Which cases of every list this process runs. MHLA_TEST_PART=2/8 stands for the third of eight parts, so that several
// processes share one long test.
struct CasePart {
  std::size_t first = 0, parts = 1;
};

inline CasePart case_part() {
  CasePart part;
  const char* const set = std::getenv("MHLA_TEST_PART");
  if (set == nullptr || *set == '\0') return part;
  char rest = 0;
  if (std::sscanf(set, "%zu/%zu%c", &part.first, &part.parts, &rest) != 2 || part.first >= part.parts)
    throw std::invalid_argument("MHLA_TEST_PART is I/N with I below N, such as 2/8, and not " + std::string(set));
  return part;
}

// `check` over every case that the candidate takes. A candidate for one kind of card may step aside: then the case is
// tried with larger heads, how often it still does is printed, and a list of which it takes nothing is skipped, not
// passed.
inline void check_cases(const std::vector<Case>& cases, std::string_view candidate,
                        std::string (*check)(const Case&, std::string_view)) {
  if (const std::string why = missing_here(candidate); !why.empty())
    GTEST_SKIP() << candidate << ": " << why << ", " << cases.size() << " cases not run";
  const CasePart part = case_part();
  std::size_t ran = 0, wider = 0, aside = 0, forward_only = 0;
  std::string reason;
  for (std::size_t at = part.first * kCaseStep; at < cases.size(); at += part.parts * kCaseStep, ++ran) {
    const Case& c = cases[at];
    Case tried = c;
    if (!steps_aside(tried, candidate).empty()) tried.D += 16, tried.E += 16, ++wider;
    if (const std::string why = steps_aside(tried, candidate); !why.empty()) {
      --wider, ++aside, reason = why;
      continue;
    }
    if (has_backward(c.form, candidate)) {
      if (const std::string why = steps_aside(tried, candidate, true); !why.empty()) ++forward_only, reason = why;
    }
    EXPECT_EQ(check(tried, candidate), "");
  }
  if (wider + aside + forward_only > 0) {
    std::cout << candidate << ", " << ran << " cases: " << wider << " with larger heads, " << aside << " not taken, "
              << forward_only << " without backward; last reason: " << reason << "\n";
  }
  if (aside == ran && !cases.empty())
    GTEST_SKIP() << candidate << " takes none of the cases: " << (ran > 0 ? reason : "this part has none");
}

}  // namespace mhla
