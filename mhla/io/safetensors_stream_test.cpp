// Files whose tensors come piece by piece while they are written.
#include "mhla/io/safetensors_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <span>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

TEST(SafetensorsStream, TensorsThatComeLaterGiveTheSameFile) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "later.safetensors";
  const float x[] = {1, 2, 3, 4, 5, 6}, y[] = {7, 8};
  const std::vector<NamedView> here{{"b", ConstView(x, DType::kF32, {2, 3})}, {"a", ConstView(y, DType::kF32, {2})}};
  std::vector<NamedView> later = here;
  later[0].view.data = nullptr;
  std::vector<std::string> asked;
  const auto give = [&](std::size_t count) {
    return [&, count](const NamedView& tensor, const ByteSink& sink) {
      asked.push_back(tensor.name);
      for (std::size_t i = 0; i < count; ++i) sink(std::as_bytes(std::span(x + i, 1)));
    };
  };
  write_safetensors(path, later, {{"k", "v"}}, give(6));
  EXPECT_EQ(asked, std::vector<std::string>{"b"});
  const std::vector<std::byte> whole = safetensors_bytes(here, {{"k", "v"}});
  EXPECT_EQ(read_file(path), whole);
  try {  // too little: the file stays as it was
    write_safetensors(path, later, {}, give(5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "write_safetensors: tensor \"b\": 20 bytes came, expected 24");
  }
  EXPECT_EQ(read_file(path), whole);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace mhla
