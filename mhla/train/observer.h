// What a long job tells while it runs. Plain values without LibTorch, so that a program can listen to a library that it
// opened later.
#pragma once

#include "mhla/io/json.h"

namespace mhla::train {

// Rows are those of log.jsonl; progress comes several times a second and is not logged.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void row(const JsonValue& row) = 0;
  virtual void progress(const JsonValue& row) = 0;
};

// A row {"kind": "warning", "text": ...}.
inline void warn(Observer& observer, const std::string& text) {
  observer.row(JsonValue().set("kind", "warning").set("text", text));
}

}  // namespace mhla::train
