#include "apps/cli/command_line.h"

#include <algorithm>

#include "apps/cli/joined.h"
#include "mhla/core/error.h"
#include "mhla/io/fields.h"

namespace mhla::apps {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The name to show for one that an option has: a switch may be turned off by another name, the rest are aliases.
std::string shown_name(const CLI::Option& option, const std::string& name) {
  return contains(option.get_fnames(), name) ? name : option.get_lnames().front();
}

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::vector<std::string>& names = option->get_lnames();
    if (is_positional || names.empty()) return Formatter::make_option_name(option, is_positional);
    std::string text;
    for (const std::string& letter : option->get_snames()) text += "-" + letter + ",";
    const bool both = contains(option->get_fnames(), "no-" + names.front());
    return text + (both ? "--[no-]" : "--") + names.front();
  }
  std::string make_option_opts(const CLI::Option* option) const override {  // "NAME,..." says already that it repeats
    const std::string text = Formatter::make_option_opts(option), &type = option->get_type_name(), more = " ...";
    const bool listed = type.size() > 4 && type.compare(type.size() - 4, 4, ",...") == 0;
    const std::size_t at = listed ? text.rfind(more) : std::string::npos;
    return at == std::string::npos ? text : text.substr(0, at) + text.substr(at + more.size());
  }
};

// The command that the words chose, such as "train lm".
const CLI::App* chosen(const CLI::App& app, std::string& name) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    name += (name.empty() ? "" : " ") + command->get_name();
  }
  return command;
}

std::vector<std::string> subcommands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* one : command.get_subcommands({})) names.push_back(one->get_name());
  return names;
}

// The option that has this name, without dashes; null: none has.
const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options())
    if (contains(option->get_lnames(), name)) return option;
  return nullptr;
}

std::string nearest_flag(const CLI::App& command, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty())
      names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() ? nearest : "--" + shown_name(*find_option(command, nearest), nearest);
}

[[noreturn]] void refuse_word(const CLI::App& app, const std::string& word) {
  std::string name;
  const CLI::App* command = chosen(app, name);
  const std::string label = name.empty() ? "" : name + ": ",
                    help = str("mhla ", name, name.empty() ? "" : " ", "--help");
  const std::size_t begin = word.find_first_not_of('-');
  if (begin != 0 && begin != std::string::npos) {
    const std::string flag = word.substr(0, word.find('=')), bare = flag.substr(begin);
    if (begin == 2 && find_option(*command, bare) != nullptr)  // given to `train` instead of `train lm`
      fail(label, flag, " is given before '", command->get_name(), "', expected after it");
    const std::string nearest = nearest_flag(*command, bare);
    fail(label, flag, " is unknown, nearest is ", nearest, " (", help, " lists all flags)");
  }
  if (const std::vector<std::string> names = subcommands_of(*command); !names.empty())
    fail(label, "unknown command '", word, "', nearest is '", nearest_name(word, names), "', expected one of ",
         joined(names));
  fail(label, "unexpected word '", word, "', expected flags; a value of several words needs quotes (", help,
       " lists all flags)");
}

// What CLI11 says of a flag, in the words of all other errors: "--n is 0, expected ...".
std::string in_our_words(std::string text) {
  constexpr std::string_view kConvert = "Could not convert: ", kEquals = " = ";
  if (const std::size_t at = text.find(": is "); at != std::string::npos) return text.erase(at, 1);
  if (const std::size_t at = text.find(": At Most 1 required"); at != std::string::npos)
    return text.substr(0, at) + " is given more than once";
  if (const std::size_t at = text.find(kEquals); at != std::string::npos && text.rfind(kConvert, 0) == 0)
    return str(text.substr(kConvert.size(), at - kConvert.size()), " is '", text.substr(at + kEquals.size()),
               "', expected a number");
  return text;
}

}  // namespace

std::unique_ptr<CLI::App> make_parser(Job& job) {
  auto app = std::make_unique<CLI::App>("Multi-Head Linear Attention: check it, time it, train it, see it.");
  app->formatter(std::make_shared<HelpFormatter>());  // before the commands, which take it from here
  app->name("mhla");
  app->set_version_flag("--version", "mhla " MHLA_VERSION);
  app->require_subcommand(1);
  add_doctor(*app, job);
  add_verify(*app, job);
  add_bench(*app, job);
  add_data(*app, job);
  add_train(*app, job);
  add_eval(*app, job);
  add_predict(*app, job);
  add_export(*app, job);
  add_generate(*app, job);
  add_sample(*app, job);
  add_analyze(*app, job);
  add_report(*app, job);
  add_demo(*app, job);
  add_inspect(*app, job);
  add_convert(*app, job);
  return app;
}

void parse_words(CLI::App& app, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    if (const std::vector<std::string> unknown = app.remaining(true); !unknown.empty())
      refuse_word(app, unknown.front());
    std::string name;
    const CLI::App* command = chosen(app, name);
    const std::string label = name.empty() ? "" : name + ": ";
    const std::vector<std::string> commands = subcommands_of(*command);
    if (!commands.empty() && command->get_require_subcommand_min() > 0)
      fail(label, "no command is given, expected one of ", joined(commands));
    fail(label, in_our_words(error.what()), " (mhla ", name, " --help lists all flags)");
  }
}

}  // namespace mhla::apps
