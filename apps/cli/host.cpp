// Linux tells everything through /proc and /sys; a fact that is missing there stays at its default.
#include "apps/cli/host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/cli/output.h"
#include "mhla/core/thread_count.h"
#include "mhla/core/threads.h"

namespace mhla::apps {
namespace {

std::string first_word_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// "32K", "1024K", "32M" as the cache files of /sys spell sizes.
std::int64_t parse_cache_size(const std::string& text) {
  if (text.empty()) return 0;
  std::istringstream stream(text);
  std::int64_t value = 0;
  char unit = 0;
  stream >> value >> unit;
  if (unit == 'K') return value << 10;
  if (unit == 'M') return value << 20;
  return value;
}

void read_caches(CpuFacts& facts) {
  const std::filesystem::path root = "/sys/devices/system/cpu/cpu0/cache";
  for (int index = 0; index < 8; ++index) {
    const std::filesystem::path cache = root / fmt::format("index{}", index);
    const std::string type = first_word_of(cache / "type");
    if (type.empty() || type == "Instruction") continue;
    const std::int64_t bytes = parse_cache_size(first_word_of(cache / "size"));
    const std::string level = first_word_of(cache / "level");
    if (level == "1") facts.l1d_bytes = bytes;
    if (level == "2") facts.l2_bytes = bytes;
    if (level == "3") facts.l3_bytes = bytes;
  }
}

void read_processor(CpuFacts& facts) {
  static constexpr const char* kWanted[] = {
      "ssse3",    "sse4_1",   "sse4_2",   "avx",      "f16c",        "fma",         "avx2",        "avx512f",
      "avx512dq", "avx512bw", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
      "amx_bf16", "asimd",    "asimdhp",  "bf16",     "sve",         "sve2"};
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (line.rfind("model name", 0) == 0 && facts.model.empty()) facts.model = value;
    const bool flags = line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0;
    if (!flags || !facts.features.empty()) continue;
    std::istringstream words(value);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    for (const char* name : kWanted)
      if (std::find(found.begin(), found.end(), name) != found.end()) facts.features.emplace_back(name);
  }
  if (facts.model.empty()) facts.model = "unknown";
}

}  // namespace

CpuFacts read_cpu_facts() {
  CpuFacts facts;
  facts.threads = hardware_threads();
  read_processor(facts);
  read_caches(facts);
  const SystemMemory memory = system_memory();
  facts.memory_bytes = memory.total_bytes, facts.available_bytes = memory.available_bytes;
  return facts;
}

std::int64_t last_level_cache(const CpuFacts& cpu) {
  const std::int64_t largest = std::max({cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes});
  return largest > 0 ? largest : std::int64_t{32} << 20;
}

std::string version_text(int cuda_version) {
  return fmt::format("{}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
}

std::string executable_directory() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : path.parent_path().string();
}

int threads_for(std::int64_t asked) {
  const ThreadCount count = usable_threads(asked);
  if (!count.fewer.empty()) complain(count.fewer);
  return count.threads;
}

void bound_library_threads() {
  const char* set = std::getenv("OMP_NUM_THREADS");
  const std::int64_t asked = set == nullptr ? 0 : std::clamp(std::atoi(set), 0, 1024);
  setenv("OPENBLAS_NUM_THREADS", std::to_string(usable_threads(asked).threads).c_str(), /*overwrite=*/0);
}

std::string compiler_text() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace mhla::apps
