#include "mhla/io/text/pipeline/split.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/io/json.h"

namespace mhla::pipeline {

SplitBehavior split_behavior(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail("behavior is ", json_quote(name).substr(0, 80),
       ", expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void parts_of(const std::vector<Span>& matches, std::size_t size, std::vector<SplitPart>& parts) {
  std::size_t at = 0;
  for (const Span& match : matches) {
    if (at != match.begin) parts.push_back({{at, match.begin}, false});
    parts.push_back({match, true});
    at = match.end;
  }
  if (at != size) parts.push_back({{at, size}, false});
}

void put_pieces(const std::vector<SplitPart>& parts, SplitBehavior behavior, std::size_t offset,
                std::vector<Span>& pieces) {
  const std::size_t before = pieces.size();
  const auto put = [&](const Span& span) { pieces.push_back({span.begin + offset, span.end + offset}); };
  bool after_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      for (const SplitPart& part : parts)
        if (behavior == SplitBehavior::kIsolated || !part.is_match) put(part.span);
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (const SplitPart& part : parts) {
        const bool joins =
            behavior == SplitBehavior::kContiguous ? part.is_match == after_match : part.is_match && !after_match;
        if (joins && pieces.size() > before)
          pieces.back().end = part.span.end + offset;
        else
          put(part.span);
        after_match = part.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:  // from the end on
      for (std::size_t i = parts.size(); i-- > 0;) {
        const auto& part = parts[i];
        if (part.is_match && !after_match && pieces.size() > before)
          pieces.back().begin = part.span.begin + offset;
        else
          put(part.span);
        after_match = part.is_match;
      }
      std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(before), pieces.end());
      break;
  }
  const auto empty = [](const Span& span) { return span.begin == span.end; };
  pieces.erase(std::remove_if(pieces.begin() + static_cast<std::ptrdiff_t>(before), pieces.end(), empty), pieces.end());
}

}  // namespace mhla::pipeline
