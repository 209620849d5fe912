// How close an answer is to the expected one, from 0 to 1, as LongBench measures it.
#pragma once

#include <string>
#include <string_view>

namespace mhla {

// F1 of words, as a bag: lower case, without punctuation (ASCII) and the words a, an, the.
double word_f1(std::string_view answer, std::string_view expected);

// ROUGE-L over sentences (parts between full stops): distinct words that lie on a longest common subsequence of any
// pair of sentences, against the distinct words of either side.
double rouge_l(std::string_view answer, std::string_view expected);

// Of the numbers in the answer, the part that is the one behind `mark` in what is expected: "Paragraph 7".
double retrieved(std::string_view answer, std::string_view expected, std::string_view mark);

// Characters that lie on a longest common subsequence, twice, of those of both; whole percents.
double edit_similarity(std::string_view answer, std::string_view expected);

// The same of the answer's first line that is no comment and no mark of a code block.
double code_similarity(std::string_view answer, std::string_view expected);

}  // namespace mhla
