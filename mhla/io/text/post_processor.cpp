#include "mhla/io/text/post_processor.h"

#include "mhla/io/text/json_part.h"

namespace mhla {
namespace {

void put(const JsonValue& id, std::size_t vocab, std::vector<std::uint32_t>& to) {
  const std::int64_t token = id.as_int();
  if (token < 0 || token >= static_cast<std::int64_t>(vocab))
    fail("post_processor puts token ", token, ", expected 0 to ", vocab - 1);
  to.push_back(static_cast<std::uint32_t>(token));
}

void read_template(const JsonValue& value, std::size_t vocab, AroundText& around) {
  const JsonPart part(value, "post_processor", {"type", "single", "pair", "special_tokens"});
  bool behind = false;
  for (const JsonValue& piece : part.at("single").items()) {
    const JsonPart one(piece, "post_processor.single", {"SpecialToken", "Sequence"});
    if (const JsonValue* text = one.find("Sequence")) {
      if (behind || one.find("SpecialToken") != nullptr || text->at("id").as_string() != "A")
        fail("post_processor.single has ", shown(piece), ", expected the text A once");
      behind = true;
      continue;
    }
    const std::string& name = one.at("SpecialToken").at("id").as_string();
    for (const JsonValue& id : part.at("special_tokens").at(name).at("ids").items())
      put(id, vocab, behind ? around.closing : around.opening);
  }
  if (!behind) fail("post_processor.single has no text A");
}

// cls before the text and sep behind it, each a name and an id.
void read_pair(const JsonPart& part, std::size_t vocab, AroundText& around) {
  for (const char* key : {"cls", "sep"}) {
    const JsonValue& token = part.at(key);
    if (!token.is_array() || token.size() != 2 || !token.at(0).is_string())
      fail("post_processor.", key, " is ", shown(token), ", expected a token and its id");
    put(token.at(1), vocab, *key == 'c' ? around.opening : around.closing);
  }
}

void read_into(const JsonValue& value, std::size_t vocab, AroundText& around) {
  const std::string type = type_of(value, "post_processor");
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const JsonValue& item : JsonPart(value, "post_processor", {"type", "processors"}).at("processors").items()) {
      if (type_of(item, "post_processor") == "Sequence") fail("post_processor has a Sequence in a Sequence");
      read_into(item, vocab, around);
    }
    return;
  }
  if (!around.opening.empty() || !around.closing.empty()) fail("post_processor has two templates, expected one");
  if (type == "TemplateProcessing") return read_template(value, vocab, around);
  if (type == "BertProcessing") return read_pair({value, "post_processor", {"type", "sep", "cls"}}, vocab, around);
  if (type == "RobertaProcessing")
    return read_pair({value, "post_processor", {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}}, vocab,
                     around);
  fail("post_processor is ", json_quote(type).substr(0, 80),
       ", expected ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or a Sequence of these");
}

}  // namespace

AroundText read_post_processor(const JsonValue& value, std::size_t vocab) {
  AroundText around;
  read_into(value, vocab, around);
  return around;
}

}  // namespace mhla
