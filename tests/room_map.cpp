#include "tests/room_map.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "mhla/core/error.h"

namespace mhla::room_map {
namespace {

bool starts_with(std::string_view text, std::string_view head) { return text.substr(0, head.size()) == head; }

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

// Tests, their fixtures and benchmarks may look at testing/ and what that uses; they are no part of the library.
bool is_check(std::string_view path) {
  for (const std::string_view tail : {"_test.cpp", "_bench.cpp", "_fuzz.cpp", "_fixture.h"}) {
    if (ends_with(path, tail)) return true;
  }
  return false;
}

// LibTorch begins at ops/: below it, and in analysis' plain arrays, none of its headers.
bool below_torch(std::string_view room) {
  constexpr std::array<std::string_view, 11> kBelow = {"core",     "io",         "io_codecs",        "io_text",
                                                       "kernels",  "testing",    "analysis",         "data",
                                                       "language", "train_runs", "diffusion_metrics"};
  return std::find(kBelow.begin(), kBelow.end(), room) != kBelow.end();
}

bool is_torch_header(std::string_view target) {
  for (const std::string_view head : {"torch/", "ATen/", "c10/", "caffe2/"}) {
    if (starts_with(target, head)) return true;
  }
  return false;
}

void reach(const Arrows& direct, const std::string& room, std::set<std::string>& seen) {
  if (!seen.insert(room).second) return;
  const auto uses = direct.find(room);
  if (uses == direct.end()) return;
  for (const std::string& next : uses->second) reach(direct, next, seen);
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", name);
  return text.empty() ? "nothing" : text;
}

std::set<std::string> allowed_for(const std::string& path, const std::string& room, const Arrows& reachable) {
  std::set<std::string> allowed = reachable.at(room);
  if (is_check(path)) allowed.insert(reachable.at("testing").begin(), reachable.at("testing").end());
  return allowed;
}

}  // namespace

const Arrows& direct_arrows() {
  static const Arrows arrows = {
      {"core", {}},
      {"io", {"core"}},
      {"io_codecs", {"io", "core"}},
      {"io_text", {"io", "core"}},
      {"data", {"io_codecs", "io_text", "io", "core"}},
      {"language", {"data", "io_text", "io", "core"}},
      {"kernels", {"core"}},
      {"testing", {"core", "kernels"}},
      {"ops", {"kernels", "core"}},
      {"modules", {"ops"}},
      {"models", {"modules", "io"}},
      {"diffusion", {"models", "data"}},
      {"train_runs", {"io", "core"}},
      {"train_distributed", {"ops", "io", "core"}},
      {"train", {"diffusion", "models", "data", "train_runs", "train_distributed"}},
      {"analysis", {"core"}},
      {"diffusion_metrics", {"analysis", "io_codecs", "io", "core"}},
      {"analysis_networks", {"analysis", "models"}},
      {"language_decoding", {"language", "models"}},
      {"apps",
       {"train", "diffusion", "analysis_networks", "language_decoding", "diffusion_metrics", "io", "io_codecs",
        "io_text", "testing"}},
      {"examples", {"kernels", "io", "models"}},
      {"tests", {"apps", "examples"}},
  };
  return arrows;
}

Arrows closure(const Arrows& direct) {
  Arrows reachable;
  for (const auto& [room, uses] : direct) reach(direct, room, reachable[room]);
  return reachable;
}

std::string room_on_cycle(const Arrows& direct) {
  const Arrows reachable = closure(direct);
  for (const auto& [room, uses] : direct) {
    for (const std::string& next : uses) {
      const auto back = reachable.find(next);
      if (back != reachable.end() && back->second.count(room) != 0) return room;
    }
  }
  return {};
}

std::string room_of(std::string_view path) {
  // Rooms inside rooms: a folder with a CMakeLists.txt, and so a target, of its own.
  for (const std::string_view inner :
       {"mhla/io/codecs/", "mhla/io/text/", "mhla/analysis/networks/", "mhla/language/decoding/", "mhla/train/runs/",
        "mhla/train/distributed/", "mhla/diffusion/metrics/"}) {
    if (!starts_with(path, inner)) continue;
    std::string name(inner.substr(5, inner.size() - 6));  // "io/codecs"
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
  }
  if (starts_with(path, "mhla/")) path.remove_prefix(5);
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string() : std::string(path.substr(0, slash));
}

std::vector<Include> includes_of(std::string_view text) {
  // HWY_TARGET_INCLUDE names a file that Highway includes once per instruction set: an include like the others.
  static const std::regex pattern(R"(^\s*#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s*(["<])([^">]+)[">])");
  std::vector<Include> found;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) found.push_back({number, match[1] == "\"", match[2]});
  }
  return found;
}

Arrows drawn_arrows(const Sources& sources) {
  Arrows drawn;
  for (const auto& [path, text] : sources) {
    if (is_check(path)) continue;
    for (const Include& include : includes_of(text)) {
      if (!starts_with(include.target, "mhla/")) continue;
      const std::string from = room_of(path);
      const std::string to = room_of(include.target);
      if (!to.empty() && to != from) drawn[from].insert(to);
    }
  }
  return drawn;
}

Arrows linked_arrows(const Sources& sources) {
  static const std::regex pattern(R"(mhla_room\(\s*(\w+)(?:\s+USES((?:\s+[a-z_]+\b)*))?)");
  Arrows linked;
  for (const auto& [path, text] : sources) {
    std::smatch match;
    if (!ends_with(path, "CMakeLists.txt") || !std::regex_search(text, match, pattern)) continue;
    std::istringstream names(match[2]);
    linked[match[1]] = {std::istream_iterator<std::string>(names), std::istream_iterator<std::string>()};
  }
  return linked;
}

std::vector<std::string> violations(const Sources& sources) {
  std::vector<std::string> wrong;
  const Arrows reachable = closure(direct_arrows());
  const Arrows linked = closure(linked_arrows(sources));
  for (const auto& [path, text] : sources) {
    const std::string room = room_of(path);
    if (ends_with(path, "CMakeLists.txt")) {
      static const std::regex name(R"(mhla_room\(\s*(\w+))");
      std::smatch match;
      if (std::regex_search(text, match, name) && match[1] != room)
        wrong.push_back(str(path, ": the room is called ", match[1].str(), ", expected ", room, ", after its path"));
      continue;
    }
    for (const Include& include : includes_of(text)) {
      const std::string place = str(path, ":", include.line, ": ");
      if (below_torch(room) && is_torch_header(include.target)) {
        wrong.push_back(str(place, room, " includes ", include.target, ", but LibTorch begins at ops"));
      }
      if (!include.quoted) {
        if (starts_with(include.target, "mhla/")) wrong.push_back(str(place, "write \"", include.target, "\""));
        continue;
      }
      if (starts_with(include.target, "hwy/")) continue;  // Highway's own way to write its includes
      if (sources.count(include.target) == 0) {
        wrong.push_back(str(place, "\"", include.target, "\" is no file of ours as seen from the repository root; ",
                            "write \"mhla/<room>/<file>\", or <...> for a library"));
        continue;
      }
      if (is_check(include.target) && !is_check(path)) {
        wrong.push_back(str(place, include.target, " is for tests only"));
      }
      const std::string to = room_of(include.target);
      if (to.empty()) continue;  // mhla/c.h, the one header outside a room
      if (reachable.count(room) == 0) {
        if (!room.empty()) wrong.push_back(str(place, "'", room, "' is no room of the map"));
        continue;
      }
      const std::set<std::string> allowed = allowed_for(path, room, reachable);
      if (allowed.count(to) == 0) {
        wrong.push_back(str(place, room, " includes ", include.target, ": an arrow turns round, ", room, " may use ",
                            join(allowed)));
      } else if (linked.count(room) != 0 && !is_check(path) && linked.at(room).count(to) == 0) {
        wrong.push_back(str(place, room, " includes ", include.target, ", but its mhla_room() line does not use ", to));
      }
    }
  }
  return wrong;
}

std::string draw(const Arrows& arrows) {
  std::string text;
  for (const auto& [room, uses] : arrows) text += str(room, " -> ", join(uses), "\n");
  return text;
}

Sources read_tree(const std::string& root) {
  namespace fs = std::filesystem;
  Sources sources;
  for (const char* top : {"mhla", "apps", "tests", "examples"}) {
    if (!fs::exists(fs::path(root) / top)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::path(root) / top)) {
      const std::string name = entry.path().filename().string();
      const std::string extension = entry.path().extension().string();
      const bool source = extension == ".h" || extension == ".c" || extension == ".cpp" || extension == ".cu" ||
                          extension == ".cuh" || name == "CMakeLists.txt";
      if (!entry.is_regular_file() || !source) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      sources.emplace(fs::relative(entry.path(), root).generic_string(), std::move(text));
    }
  }
  if (sources.empty()) fail("room_map: no sources below ", root);
  return sources;
}

}  // namespace mhla::room_map
