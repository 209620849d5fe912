// Options as train.json has them: the name of the task, then the fields (io/fields.h). Options::kTask is that name.
#pragma once

#include <string>

#include "mhla/io/fields.h"
#include "mhla/train/runs/run.h"

namespace mhla::train {

template <class Options>
JsonValue options_to_json(const Options& options) {
  JsonValue object = JsonValue().set("task", Options::kTask);
  const JsonValue fields = fields_to_json(options);
  for (const JsonValue::Member& member : fields.members()) object.set(member.key, member.value);
  return object;
}

// Options of another task are refused. `label` stands at the head of an error: the file's path.
template <class Options>
void options_from_json(Options& options, const JsonValue& object, const std::string& label) {
  JsonValue fields = JsonValue::object();
  const JsonValue::Object& members = labelled(label, [&]() -> const JsonValue::Object& { return object.members(); });
  for (const JsonValue::Member& member : members) {
    if (member.key != "task") {
      fields.set(member.key, member.value);
    } else if (const std::string task = labelled(label, [&] { return task_of(object); }); task != Options::kTask) {
      fail(label, ": 'task' is ", task, ", expected ", Options::kTask);
    }
  }
  fields_from_json(options, fields, label);
}

}  // namespace mhla::train
