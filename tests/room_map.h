// The map of the house: which room includes which, read from the sources, checked against the arrows that
// docs/architecture.md allows. Every function works on texts in memory, so the map itself can be tested.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::room_map {

using Sources = std::map<std::string, std::string>;           // path from the repository root -> text
using Arrows = std::map<std::string, std::set<std::string>>;  // room -> rooms it may use, or uses

// The arrows of docs/architecture.md: what a room uses directly. What those use in turn is allowed too.
const Arrows& direct_arrows();

// Every room reachable from each room of `direct`, itself included.
Arrows closure(const Arrows& direct);

// A room on a cycle of `direct`, or an empty string.
std::string room_on_cycle(const Arrows& direct);

// "kernels" for mhla/kernels/common/layout.h, "data" for mhla/data/loader.h, "apps" for apps/main.cpp
std::string room_of(std::string_view path);

struct Include {
  int line;
  bool quoted;  // "..." or <...>
  std::string target;
};
std::vector<Include> includes_of(std::string_view text);

// The arrows the sources draw between different rooms, tests and benchmarks left out.
Arrows drawn_arrows(const Sources& sources);

// The arrows written in the `mhla_room(NAME USES ...)` lines of the rooms' CMakeLists.txt.
Arrows linked_arrows(const Sources& sources);

// One line for each thing that is wrong, "path:line: what, and what is allowed"; empty when the house is in order.
std::vector<std::string> violations(const Sources& sources);

std::string draw(const Arrows& arrows);  // "kernels -> core", one room a line

// Sources, headers and CMakeLists.txt below mhla/, apps/, tests/ and examples/.
Sources read_tree(const std::string& root);

}  // namespace mhla::room_map
