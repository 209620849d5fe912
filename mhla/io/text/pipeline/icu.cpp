#include "mhla/io/text/pipeline/icu.h"

#include "mhla/core/error.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/io/text/unicode.h"

#ifdef MHLA_HAS_ICU
#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/uset.h>
#include <unicode/ustring.h>
#endif

namespace mhla {

bool has_icu() {
#ifdef MHLA_HAS_ICU
  return true;
#else
  return false;
#endif
}

}  // namespace mhla

namespace mhla::pipeline {

void need_icu(const std::string& what) {
  if (!has_icu()) fail(what, " needs ICU, which this build does not have (Debian: libicu-dev)");
}

#ifdef MHLA_HAS_ICU

namespace {

void check(UErrorCode code, const char* what) {
  if (U_FAILURE(code)) fail("ICU: ", what, ": ", u_errorName(code));
}

// One of ICU's normalisers, for the characters of Unicode 9 alone: others are passed through. It lives as long as the
// program.
const UNormalizer2* open_form(NormalForm form) {
  UErrorCode code = U_ZERO_ERROR;
  const UNormalizer2* whole = nullptr;
  switch (form) {
    case NormalForm::kNfc: whole = unorm2_getNFCInstance(&code); break;
    case NormalForm::kNfd: whole = unorm2_getNFDInstance(&code); break;
    case NormalForm::kNfkc: whole = unorm2_getNFKCInstance(&code); break;
    case NormalForm::kNfkd: whole = unorm2_getNFKDInstance(&code); break;
  }
  check(code, "normal forms");
  static const USet* const kKnown = [] {
    UErrorCode failure = U_ZERO_ERROR;
    USet* const set = uset_openPattern(u"[:age=9.0:]", -1, &failure);
    check(failure, "characters of Unicode 9");
    uset_freeze(set);
    return set;
  }();
  const UNormalizer2* const known = unorm2_openFiltered(whole, kKnown, &code);
  check(code, "normal forms");
  return known;
}

const UNormalizer2* form_of(NormalForm form) {
  static const UNormalizer2* const kForms[] = {open_form(NormalForm::kNfc), open_form(NormalForm::kNfd),
                                               open_form(NormalForm::kNfkc), open_form(NormalForm::kNfkd)};
  return kForms[static_cast<int>(form)];
}

void normalize_into(const UNormalizer2* form, std::string_view text, std::string& out) {
  if (text.size() > (std::size_t{1} << 28)) fail("ICU: ", text.size(), " bytes without an ASCII character, too many");
  UErrorCode code = U_ZERO_ERROR;
  std::u16string wide(text.size(), u'\0'), normal(text.size() * 4 + 32, u'\0');
  std::int32_t length = 0;
  u_strFromUTF8(wide.data(), static_cast<std::int32_t>(wide.size()), &length, text.data(),
                static_cast<std::int32_t>(text.size()), &code);
  check(code, "text");
  std::int32_t size = 0;
  for (;;) {
    size = unorm2_normalize(form, wide.data(), length, normal.data(), static_cast<std::int32_t>(normal.size()), &code);
    if (code != U_BUFFER_OVERFLOW_ERROR) break;
    code = U_ZERO_ERROR;
    normal.resize(static_cast<std::size_t>(size));
  }
  if (code == U_STRING_NOT_TERMINATED_WARNING) code = U_ZERO_ERROR;
  check(code, "normal form");
  const std::size_t before = out.size();
  out.resize(before + 3 * static_cast<std::size_t>(size));
  u_strToUTF8(out.data() + before, static_cast<std::int32_t>(out.size() - before), &length, normal.data(), size, &code);
  check(code, "text");
  out.resize(before + static_cast<std::size_t>(length));
}

std::uint32_t category(std::uint32_t code) { return U_MASK(u_charType(static_cast<UChar32>(code))); }

bool older_than(std::uint32_t code, std::uint8_t version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(code), age);
  return age[0] < version;
}

}  // namespace

// ASCII stays as it is, and what comes before an ASCII character does not depend on it; the last one before others may
// be joined to them.
std::string normalized(NormalForm form, std::string_view text) {
  const UNormalizer2* const how = form_of(form);
  const auto ascii = [&](std::size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t other = at;
    while (other < text.size() && ascii(other)) ++other;
    const std::size_t begin = other < text.size() && other > at ? other - 1 : other;
    out.append(text.substr(at, begin - at));
    at = other;
    while (at < text.size() && !ascii(at)) ++at;
    if (at > begin) normalize_into(how, text.substr(begin, at - begin), out);
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Code code = first_code(text.substr(at));
    if (code.code == 0x130)
      out += "i\xcc\x87";  // the one character whose lower case is two
    else
      append_utf8(static_cast<std::uint32_t>(u_tolower(static_cast<UChar32>(code.code))), out);
    at += code.length;
  }
  return out;
}

bool is_word(std::uint32_t code) {
  return (category(code) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_JOIN_CONTROL) != 0;
}

// Exceptions are characters that changed their category since.
bool is_punctuation(std::uint32_t code) {
  if (code < 0x80) return code > 0x20 && code < 0x7f && class_of(code) == CharClass::kOther;
  if (code == 0x166d || code == 0x111c9) return true;
  return (category(code) & U_GC_P_MASK) != 0 && older_than(code, 9);
}

bool is_combining(std::uint32_t code) {
  if (code == 0x1cf2 || code == 0x1cf3 || code == 0x111c9) return code != 0x111c9;
  return (category(code) & U_GC_M_MASK) != 0 && older_than(code, 10);
}

bool is_nonspacing(std::uint32_t code) {
  if (code == 0x1734) return true;
  if (code == 0x1885 || code == 0x1886 || code == 0xa9bd || code == 0x111c9) return false;
  return (category(code) & U_GC_MN_MASK) != 0 && older_than(code, 9);
}

bool is_control(std::uint32_t code) {
  return (category(code) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0 && older_than(code, 9);
}

#else

namespace {
[[noreturn]] void missing() { fail("this build has no ICU"); }
}  // namespace

std::string normalized(NormalForm, std::string_view) { missing(); }
std::string lower_case(std::string_view) { missing(); }
bool is_word(std::uint32_t) { missing(); }
bool is_punctuation(std::uint32_t) { missing(); }
bool is_combining(std::uint32_t) { missing(); }
bool is_nonspacing(std::uint32_t) { missing(); }
bool is_control(std::uint32_t) { missing(); }

#endif

}  // namespace mhla::pipeline
