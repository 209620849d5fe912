// The command line as a whole: every command of the program, and what is wrong with the words that were given.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"

namespace mhla::apps {

// The parser with all commands; parsing leaves the chosen job in `job`. Help shows the first name of an option only:
// further names are older spellings, which are still taken.
std::unique_ptr<CLI::App> make_parser(Job& job);

// Throws CLI::Success where help or the version was asked for, and mhla::Error for a mistake. A word that is not known
// is reported before anything that is missing, because it usually is what is missing, mistyped.
void parse_words(CLI::App& app, std::vector<std::string> words);

}  // namespace mhla::apps
