// How deep the steps of a tokenizer.json may be nested: a step can be a sequence of steps.
#pragma once

namespace mhla::pipeline {

inline constexpr int kMaxDepth = 16;

}  // namespace mhla::pipeline
