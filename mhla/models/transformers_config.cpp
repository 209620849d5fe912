#include "mhla/models/transformers_config.h"

#include <algorithm>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"

namespace mhla {
namespace {

struct TransformersClass {
  std::string_view family, model_type, architecture;
};

constexpr TransformersClass kTransformersClasses[] = {
    {"lm", "mhla", "MhlaForCausalLM"},
    {"deit", "mhla_image", "MhlaForImageClassification"},
    {"vlt", "mhla_image", "MhlaForImageClassification"},
};

// What save_pretrained writes beside the fields: how the class is found and called, and what text looks like.
constexpr std::string_view kTransformersKeys[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "backend",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "id2label",
    "is_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "_commit_hash",
    "num_labels",
};

const TransformersClass* class_of(std::string_view family) {
  const auto found = std::find_if(std::begin(kTransformersClasses), std::end(kTransformersClasses),
                                  [&](const TransformersClass& one) { return one.family == family; });
  return found == std::end(kTransformersClasses) ? nullptr : found;
}

}  // namespace

JsonValue for_transformers(JsonValue fields) {
  const JsonValue* family = fields.find("family");
  const TransformersClass* found = family == nullptr ? nullptr : class_of(family->as_string());
  if (found == nullptr) return fields;
  JsonValue architectures = JsonValue::array();
  architectures.push(std::string(found->architecture));
  fields.set("model_type", std::string(found->model_type)).set("architectures", architectures);
  return fields;
}

JsonValue without_transformers(const JsonValue& object, const std::string& label) {
  JsonValue kept = JsonValue::object();
  const JsonValue::Object& members = labelled(label, [&]() -> const JsonValue::Object& { return object.members(); });
  for (const JsonValue::Member& member : members) {
    const auto* const end = std::end(kTransformersKeys);
    if (std::find(std::begin(kTransformersKeys), end, member.key) == end) kept.set(member.key, member.value);
  }
  if (const JsonValue* type = object.find("model_type"); type != nullptr) {
    const std::string name = labelled(str(label, ": 'model_type'"), [&] { return type->as_string(); });
    const auto is_ours = [&](const TransformersClass& one) { return one.model_type == name; };
    if (std::none_of(std::begin(kTransformersClasses), std::end(kTransformersClasses), is_ours))
      fail(label, ": model_type is '", name, "', expected mhla (language models) or mhla_image (classifiers)");
  }
  return kept;
}

}  // namespace mhla
