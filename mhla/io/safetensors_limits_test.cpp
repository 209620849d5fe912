// What a header costs: time linear in its entries, memory at most twice the file, nothing for a claim.
// operator new is replaced to count the bytes alive; it serves the whole program, hence the separate file.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <new>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/safetensors.h"

namespace {
std::size_t alive = 0;  // this program has one thread
std::size_t peak = 0;
}  // namespace

// Not inlined: GCC 12 takes an inlined pair for a mismatch of malloc and delete.
__attribute__((noinline)) void* operator new(std::size_t size) {
  void* data = std::malloc(size);
  if (data == nullptr) throw std::bad_alloc();
  alive += malloc_usable_size(data);
  peak = std::max(peak, alive);
  return data;
}
__attribute__((noinline)) void operator delete(void* data) noexcept {
  if (data != nullptr) alive -= malloc_usable_size(data);
  std::free(data);
}
__attribute__((noinline)) void operator delete(void* data, std::size_t /*size*/) noexcept { operator delete(data); }

namespace mhla {
namespace {

constexpr std::size_t kFixed = std::size_t{16} << 20;  // the fixed part that safetensors.h promises at worst

std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header;
  file.append(data_bytes, 'x');
  return file;
}

// `entries` tensors of one byte, in data order or against it.
std::string many_entries(int entries, const char* shape, bool turned = false) {
  std::string header = "{";
  for (int i = 0; i < entries; ++i) {
    const int at = turned ? entries - 1 - i : i;
    header += str(i > 0 ? "," : "", "\"", i, "\":{\"dtype\":\"U8\",\"shape\":", shape, ",\"data_offsets\":[", at, ",",
                  at + 1, "]}");
  }
  return file_with(header + "}", static_cast<std::size_t>(entries));
}

std::span<const std::byte> bytes_of(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

// Most bytes alive at once while the file is read, beyond what was alive before.
std::size_t cost(const std::string& file, std::string* refusal = nullptr) {
  const std::size_t before = alive;
  peak = alive;
  try {
    Safetensors::from_memory(bytes_of(file), "f");
  } catch (const Error& error) {
    if (refusal != nullptr) *refusal = error.what();
  }
  return peak - before;
}

// Processor time of this thread, so that a busy machine does not count; the best of five.
double seconds(const std::string& file, std::size_t expected) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const double start = now();
    const std::size_t found = Safetensors::from_memory(bytes_of(file)).size();
    best = std::min(best, now() - start);
    EXPECT_EQ(found, expected);
  }
  return best;
}

TEST(SafetensorsLimits, TimeIsLinear) {
  for (const bool turned : {false, true}) {
    const double small = seconds(many_entries(10000, "[1]", turned), 10000);
    const double large = seconds(many_entries(100000, "[1]", turned), 100000);
    RecordProperty(turned ? "ratio_turned" : "ratio", std::to_string(large / small));
    EXPECT_LE(large / small, 30.0) << "10 times the entries took " << small << " s, then " << large << " s";
  }
}

TEST(SafetensorsLimits, LookupsAreConstant) {
  const std::string file = many_entries(100000, "[1]");
  const Safetensors tensors = Safetensors::from_memory(bytes_of(file));
  for (int i = 0; i < 100000; ++i) ASSERT_EQ(tensors.find(std::to_string(i)), static_cast<std::size_t>(i));
}

TEST(SafetensorsLimits, MemoryIsAtMostTwiceTheFile) {
  for (const char* shape : {"[]", "[1]", "[1,1,1,1,1,1,1,1]"}) {
    for (const bool turned : {false, true}) {
      const std::string file = many_entries(100000, shape, turned);
      const std::size_t bytes = cost(file);
      EXPECT_LE(bytes, 2 * file.size()) << shape;
      EXPECT_GE(bytes, file.size() / 2) << "the count does not count";
    }
  }
  // Escaped names, empty tensors: the shortest entries there are.
  std::string header = "{";
  for (int i = 0; i < 100000; ++i)
    header += str(i > 0 ? "," : "", "\"\\n", i, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
  EXPECT_LE(cost(file_with(header + "}", 0)), 2 * header.size());
}

TEST(SafetensorsLimits, LongStringsStayWithinTheFixedPart) {
  const std::string text((std::size_t{2} << 20) - 10, 'm');
  const std::string metadata = file_with("{\"__metadata__\":{\"a\":\"" + text + "\"}}", 0);
  std::string refusal;
  EXPECT_LE(cost(metadata, &refusal), 2 * metadata.size() + kFixed);
  EXPECT_EQ(refusal, "");
  std::string pairs = "{\"__metadata__\":{\"\":\"\"";
  for (int i = 0; i < 65535; ++i) pairs += str(",\"", i, "\":\"\"");
  EXPECT_LE(cost(file_with(pairs + "}}", 0), &refusal), 2 * pairs.size() + kFixed);
  EXPECT_EQ(refusal, "");
  cost(file_with(pairs + ",\"x\":\"\"}}", 0), &refusal);
  EXPECT_EQ(refusal, "f: __metadata__ has more than 65536 keys, the most that is supported");
}

TEST(SafetensorsLimits, LiesCostNothing) {
  // Lengths and shapes that claim much more than is there.
  std::string claim = file_with("{}", 0);
  for (const std::uint64_t length : {std::uint64_t{99'999'999}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::memcpy(claim.data(), &length, 8);
    EXPECT_LE(cost(claim), 4096u);
  }
  EXPECT_LE(cost(file_with(R"({"t":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}})", 8)),
            8192u);
  // One string, number, gap or nest that fills a large header is refused before it is buffered.
  const std::size_t large = std::size_t{8} << 20;
  for (const std::string& header :
       {"{\"" + std::string(large, 'n') + "\":{}}", "{\"t\":{\"shape\":[" + std::string(large, '1') + "]}}",
        "{" + std::string(large, ' ') + "}", "{\"t\":" + std::string(large, '[') + "}",
        "{\"t\":{\"dtype\":\"" + std::string(large, '\\') + "\"}}"}) {
    std::string refusal;
    EXPECT_LE(cost(file_with(header, 0), &refusal), 2 * large);
    EXPECT_LE(refusal.size(), 300u);
    EXPECT_EQ(refusal.substr(0, 3), "f: ");
  }
}

TEST(SafetensorsLimits, AMappedFileIsNotCopied) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "mapped.safetensors";
  const std::size_t size = std::size_t{32} << 20;
  write_file(path,
             file_with(str(R"({"t":{"dtype":"U8","shape":[)", size, R"(],"data_offsets":[0,)", size, "]}}"), size));
  const std::size_t before = alive;
  peak = alive;
  {
    const Safetensors tensors = Safetensors::read(path);
    EXPECT_EQ(static_cast<const char*>(tensors.view("t").data)[size - 1], 'x');
  }
  EXPECT_LE(peak - before, std::size_t{1} << 16);
  EXPECT_EQ(alive, before);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace mhla
