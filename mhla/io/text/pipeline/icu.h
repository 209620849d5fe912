// What needs the tables of Unicode: normal forms, lower case, kinds of characters; through ICU where the build has it.
// Which characters there are is what Hugging Face's tokenizers know: Unicode 9 for normal forms and combining marks,
// Unicode 8 for punctuation and what BertNormalizer does; later ones are left alone, so that ids stay those a model was
// trained with. Text is UTF-8. Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mhla::pipeline {

void need_icu(const std::string& what);  // an Error that names ICU where it was not built in

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Without ICU all of these are Errors.
std::string normalized(NormalForm form, std::string_view text);
std::string lower_case(std::string_view text);  // each character alone: no final sigma
bool is_word(std::uint32_t code);               // \w of Rust: Alphabetic, M, Nd, Pc, Join_Control
bool is_punctuation(std::uint32_t code);        // P, and all of ASCII that is neither letter, digit, space nor control
bool is_combining(std::uint32_t code);          // M
bool is_nonspacing(std::uint32_t code);         // Mn
bool is_control(std::uint32_t code);            // Cc, Cf, Co

}  // namespace mhla::pipeline
