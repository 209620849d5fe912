#include "mhla/io/text/pipeline/regex.h"

#include "mhla/core/error.h"
#include "mhla/io/json.h"
#include "mhla/io/text/pipeline/regex_syntax.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/io/text/unicode.h"

#ifdef MHLA_HAS_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace mhla {

bool has_pcre2() {
#ifdef MHLA_HAS_PCRE2
  return true;
#else
  return false;
#endif
}

}  // namespace mhla

namespace mhla::pipeline {
namespace {

std::string shown(const std::string& pattern) { return json_quote(pattern.substr(0, 200)); }

}  // namespace

RegexBudget::RegexBudget(std::size_t bytes, const RegexLimits& limits)
    : seconds_(limits.seconds * (1.0 + static_cast<double>(bytes) / 1e6)), steps_(limits.steps) {
  end_ = std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds_));
}

void RegexBudget::check(const std::string& pattern) const {
  if (std::chrono::steady_clock::now() > end_)
    fail("pattern ", shown(pattern), " passed the limit of ", seconds_, " seconds for a text of this length");
}

#ifdef MHLA_HAS_PCRE2

namespace {

template <class T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* value) const { kFree(value); }
};
template <class T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Freed<T, kFree>>;

std::string words_of(int error) {
  unsigned char text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  Owned<pcre2_code, pcre2_code_free> code;
};

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  const PcrePattern translated = to_pcre(pattern);
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                PCRE2_USE_OFFSET_LIMIT | (translated.captures ? 0 : PCRE2_NO_AUTO_CAPTURE);
  int error = 0;
  std::size_t at = 0;
  auto made = std::make_unique<Code>();
  made->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.text.data()), translated.text.size(), options,
                                 &error, &at, context.get()));
  if (made->code == nullptr) fail("pattern ", shown(pattern), " is refused by PCRE2: ", words_of(error));
  pcre2_jit_compile(made->code.get(), PCRE2_JIT_COMPLETE);  // where there is none, the interpreter matches
  code_ = std::move(made);
}

Regex::~Regex() = default;

void Regex::find_all(std::string_view text, const RegexBudget& budget, std::vector<Span>& matches) const {
  const pcre2_code* const code = code_->code.get();
  const Owned<pcre2_match_data, pcre2_match_data_free> data(pcre2_match_data_create_from_pattern(code, nullptr));
  const Owned<pcre2_match_context, pcre2_match_context_free> context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), budget.steps());
  const auto* const bytes = reinterpret_cast<PCRE2_SPTR>(text.data());
  constexpr std::size_t kWindow = 64;
  std::size_t at = 0, window = kWindow, last_end = std::string_view::npos;
  while (at <= text.size()) {
    // Where a match may begin: the clock is read between windows. They grow while nothing is found, or a search for a
    // letter that never comes would run over all of the text for each of them.
    const std::size_t limit = std::min(text.size(), at + window);
    pcre2_set_offset_limit(context.get(), limit);
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(code, bytes, text.size(), at, PCRE2_NO_UTF_CHECK | options, data.get(), context.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    budget.check(pattern_);
    if (found == PCRE2_ERROR_NOMATCH) {
      if (limit == text.size()) break;
      at = limit;
      while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;  // to where a character begins
      window *= 2;
      continue;
    }
    if (found == PCRE2_ERROR_MATCHLIMIT)
      fail("pattern ", shown(pattern_), " needs more than ", budget.steps(), " steps behind byte ", at,
           " of the text (PCRE2's match limit)");
    if (found < 0) fail("pattern ", shown(pattern_), " fails behind byte ", at, " of the text: ", words_of(found));
    window = kWindow;
    const std::size_t* const ends = pcre2_get_ovector_pointer(data.get());
    const Span found_at{ends[0], ends[1]};
    if (found_at.begin == found_at.end && found_at.end == last_end) {
      at += at < text.size() ? first_code(text.substr(at)).length : 1;
      continue;
    }
    at = last_end = found_at.end;
    matches.push_back(found_at);
  }
}

#else

struct Regex::Code {};

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  (void)to_pcre(pattern);  // what PCRE2 would not do either is named first
  fail("pattern ", shown(pattern), " needs PCRE2, which this build does not have (Debian: libpcre2-dev)");
}

Regex::~Regex() = default;

void Regex::find_all(std::string_view, const RegexBudget&, std::vector<Span>&) const {}

#endif

}  // namespace mhla::pipeline
