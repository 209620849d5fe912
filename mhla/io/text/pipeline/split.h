// What becomes of the matches of a Split. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "mhla/io/text/pipeline/regex.h"

namespace mhla::pipeline {

enum class SplitBehavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior split_behavior(const std::string& name);  // as tokenizer.json names it

// A stretch of text that is a match, or lies between two.
struct SplitPart {
  Span span;
  bool is_match = false;
};

// The parts of a text [0, size), in order, from its matches.
void parts_of(const std::vector<Span>& matches, std::size_t size, std::vector<SplitPart>& parts);
// Appends the pieces that are left of `parts`, moved by `offset`.
void put_pieces(const std::vector<SplitPart>& parts, SplitBehavior behavior, std::size_t offset,
                std::vector<Span>& pieces);

}  // namespace mhla::pipeline
