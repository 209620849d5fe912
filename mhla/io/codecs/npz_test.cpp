// Arrays as NumPy writes and reads them: against bytes that NumPy wrote, through our own reader, and damaged.
#include "mhla/io/codecs/npz.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "mhla/core/error.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

// A folder of this test's own.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::path(testing::TempDir()) / "npz_test") {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

template <class T>
std::vector<T> values_of(const NpyArray& array) {
  const T* data = data_as<T>(array.view);
  return {data, data + array.view.numel()};
}

TEST(Npy, HeaderIsNumpys) {
  // numpy.save of zeros((2, 3), 'u1'): 128 bytes of header
  const std::string want = std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }" + std::string(58, ' ') + "\n";
  EXPECT_EQ(text_of(npy_header(DType::kU8, {2, 3})), want);
  EXPECT_NE(text_of(npy_header(DType::kF64, {7})).find("'shape': (7,), }"), std::string::npos);
  EXPECT_NE(text_of(npy_header(DType::kF32, {})).find("'shape': (), }"), std::string::npos);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {50000, 256, 256, 3}})
    EXPECT_EQ(npy_header(DType::kU8, shape).size() % 64, 0u);
}

TEST(Npy, ReadsWhatItWrites) {
  const TempFolder folder;
  const std::vector<double> values = {1.5, -2.0, 3.25, 4.0, 5.0, 6.0};
  write_npy(folder.path() / "a.npy", {values.data(), DType::kF64, {2, 3}});
  const NpyArray array = read_npy(folder.path() / "a.npy");
  EXPECT_EQ(shape_text(array.view), "[2, 3]");
  EXPECT_EQ(values_of<double>(array), values);
}

// A header with any dictionary, and elements.
std::string npy_text(const std::string& dictionary, const std::string& elements) {
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(dictionary.size() & 0xff);
  text += static_cast<char>(dictionary.size() >> 8);
  return text + dictionary + elements;
}

TEST(Npy, FortranOrderHasStrides) {
  const std::vector<std::byte> bytes =
      bytes_of(npy_text("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "abcdef"));
  const NpyArray array = npy_array(bytes, "f");
  EXPECT_EQ(array.view.stride[0], 1);
  EXPECT_EQ(array.view.stride[1], 2);
}

TEST(Npy, WhatIsRefused) {
  const struct {
    const char* dictionary;
    const char* elements;
    const char* reason;
  } cases[] = {
      {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "x", "never unpickled"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "xxxx", "'>f4'"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }", "x", "1 bytes of elements, expected 2"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", "xy", "2 bytes of elements, expected 1"},
      {"{'descr': '|u1', 'fortran_order': False}", "", "no 'descr'"},
      {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (), }", "x", "there twice"},
      {"{'descr': '|u1', 'fortran_order': 0, 'shape': (), }", "x", "neither True nor False"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 99999999999), }", "", "too large"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,), }", "", "not a number"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", "x", "more than 8 axes"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "xxxx", "records"},
      {"__import__('os')", "", "not a dictionary"},
  };
  for (const auto& one : cases) {
    const std::vector<std::byte> bytes = bytes_of(npy_text(one.dictionary, one.elements));
    const std::string message = message_of([&] { npy_array(bytes, "file.npy"); });
    EXPECT_TRUE(has(message, one.reason) && has(message, "file.npy: ")) << message;
  }
  EXPECT_TRUE(has(message_of([&] { npy_array(bytes_of("hello world, I am text"), "f"); }), "not an npy array"));
}

struct Arrays {
  std::vector<std::uint8_t> images = std::vector<std::uint8_t>(2 * 4 * 4 * 3);
  std::vector<float> mean = {0.5f, -1.0f, 2.0f};
  Arrays() { std::iota(images.begin(), images.end(), std::uint8_t{7}); }
  void write(const std::filesystem::path& path, std::uint64_t zip64_from = 0xffffffffu) const {
    NpzWriter writer(path, zip64_from);
    writer.begin("arr_0", DType::kU8, {2, 4, 4, 3});
    const auto bytes = std::as_bytes(std::span(images));
    writer.write(bytes.first(48));
    writer.write(bytes.subspan(48));
    writer.end();
    writer.add("mu", {mean.data(), DType::kF32, {3}});
    writer.commit();
  }
  void expect_in(const Npz& npz) const {
    EXPECT_EQ(npz.names().size(), 2u);
    const NpyArray read = npz.array("arr_0");
    EXPECT_EQ(shape_text(read.view), "[2, 4, 4, 3]");
    EXPECT_EQ(values_of<std::uint8_t>(read), images);
    EXPECT_EQ(values_of<float>(npz.array("mu")), mean);
  }
};

TEST(Npz, ReadsWhatItWrites) {
  const TempFolder folder;
  const Arrays arrays;
  for (const std::uint64_t zip64_from : {std::uint64_t{0xffffffff}, std::uint64_t{200}, std::uint64_t{0}}) {
    arrays.write(folder.path() / "a.npz", zip64_from);  // 0: every size and place as zip64
    arrays.expect_in(Npz::read(folder.path() / "a.npz"));
  }
  EXPECT_EQ(message_of([&] { (void)Npz::read(folder.path() / "a.npz").array("sigma"); }),
            (folder.path() / "a.npz").string() + ": has no array 'sigma', only arr_0, mu");
}

TEST(Npz, ReadsNumpysFiles) {  // numpy.savez and savez_compressed of the same arrays
  for (const char* name : {"stored.npz", "deflated.npz"})
    Arrays().expect_in(Npz::read(std::string(MHLA_SOURCE_DIR "/mhla/io/codecs/fuzz_corpus/npz/") + name));
}

TEST(Npz, AnArrayThatIsNotComplete) {
  const TempFolder folder;
  NpzWriter writer(folder.path() / "a.npz");
  writer.begin("arr_0", DType::kU8, {4});
  const std::vector<std::byte> five(5);
  EXPECT_TRUE(has(message_of([&] { writer.write(five); }), "5 bytes, expected at most 4"));
  writer.write(std::span(five).first(3));
  EXPECT_TRUE(has(message_of([&] { writer.end(); }), "lacks 1 bytes"));
  EXPECT_TRUE(has(message_of([&] { writer.commit(); }), "not complete"));
  EXPECT_TRUE(has(message_of([&] { writer.begin("b", DType::kU8, {1}); }), "is not complete"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "a.npz"));
}

// Every byte of a file changed in turn: refused, or read with the same arrays.
TEST(Npz, ChangedBytes) {
  const TempFolder folder;
  const Arrays arrays;
  for (const std::uint64_t zip64_from : {std::uint64_t{0xffffffff}, std::uint64_t{0}}) {
    arrays.write(folder.path() / "a.npz", zip64_from);
    const std::vector<std::byte> whole = read_file(folder.path() / "a.npz");
    int refused = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::vector<std::byte> changed = whole;
      changed[i] ^= std::byte{0x40};
      try {
        const Npz npz = Npz::from_memory(changed, "changed");
        for (const std::string& name : npz.names()) {
          const NpyArray array = npz.array(name);
          if (name != "arr_0") continue;
          EXPECT_EQ(values_of<std::uint8_t>(array), arrays.images) << i;
        }
      } catch (const Error& error) {
        ++refused;
        EXPECT_TRUE(has(error.what(), "changed: ")) << error.what();
      }
    }
    EXPECT_GT(refused, 200);  // the arrays' bytes at least
    for (std::size_t size = 0; size < whole.size(); ++size)
      EXPECT_THROW(Npz::from_memory(std::span(whole).first(size), "cut"), Error) << size;
  }
}

TEST(Npz, Limits) {
  const std::string path = MHLA_SOURCE_DIR "/mhla/io/codecs/fuzz_corpus/npz/deflated.npz";
  EXPECT_TRUE(has(message_of([&] { Npz::read(path, {.max_members = 1}); }), "has 2 members, expected at most 1"));
  const Npz npz = Npz::read(path, {.max_unpacked = 100});
  EXPECT_TRUE(has(message_of([&] { (void)npz.array("arr_0"); }), "more than the 100 allowed"));
}

}  // namespace
}  // namespace mhla
