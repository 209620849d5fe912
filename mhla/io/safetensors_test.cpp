// Round trips, and every way a file can lie: each must be refused with file, tensor and reason.
#include "mhla/io/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>
#include <locale>
#include <numeric>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8,
                               DType::kU8,  DType::kI16,  DType::kU16, DType::kI32, DType::kU32,
                               DType::kI64, DType::kU64,  DType::kBool};

using Bytes = std::vector<std::byte>;

Bytes file_of(const std::string& header, std::size_t data_bytes) {
  Bytes file(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = static_cast<std::byte>(i * 37 + 1);
  return file;
}

std::string verdict(const Bytes& file) {
  try {
    const Safetensors tensors = Safetensors::from_memory(file, "f");
    for (std::size_t i = 0; i < tensors.size(); ++i) {  // an accepted file can be used to its last byte
      const ConstView view = tensors.view(i);
      const auto* data = static_cast<const unsigned char*>(view.data);
      volatile unsigned sum = 0;
      for (std::int64_t b = 0; b < view.numel() * size_of(view.dtype); ++b) sum = sum + data[b];
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string verdict(const std::string& header, std::size_t data_bytes) { return verdict(file_of(header, data_bytes)); }

// One tensor "t" of 8 bytes with the given fields, in a file of 8 data bytes.
std::string of_fields(const std::string& fields) { return verdict("{\"t\":{" + fields + "}}", 8); }

template <class T>
std::vector<T> values(const ConstView& view) {
  return {data_as<T>(view), data_as<T>(view) + view.numel()};
}

TEST(Safetensors, RoundTripOfEveryType) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<NamedView> tensors;
  for (const DType dtype : kAllTypes) {
    auto& bytes = memory.emplace_back(static_cast<std::size_t>(6 * size_of(dtype)));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(dtype == DType::kBool ? i & 1 : i * 31 + 7);
    tensors.push_back({str("tensor/", name_of(dtype)), ConstView(bytes.data(), dtype, {2, 3})});
  }
  const Bytes file = safetensors_bytes(tensors, {{"format", "pt"}});
  const Safetensors back = Safetensors::from_memory(file);
  ASSERT_EQ(back.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ConstView view = back.view(tensors[i].name);
    EXPECT_EQ(view.dtype, kAllTypes[i]);
    EXPECT_EQ(shape_text(view), "[2, 3]");
    EXPECT_TRUE(view.contiguous());
    EXPECT_EQ(std::memcmp(view.data, memory[i].data(), memory[i].size()), 0) << tensors[i].name;
    EXPECT_EQ(safetensors_dtype(safetensors_name(kAllTypes[i])), kAllTypes[i]);
  }
  EXPECT_EQ(back.metadata(), (Metadata{{"format", "pt"}}));
}

TEST(Safetensors, WritesTheseBytes) {
  const float x[] = {1, 2};
  const std::uint8_t b[] = {7};
  // Larger elements first whatever the order given; padded to 8.
  const std::string header =
      "{\"__metadata__\":{\"k\":\"v\\n\"},\"x\\\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  Bytes want = file_of(padded, 9);
  std::memcpy(want.data() + 8 + padded.size(), x, 8);
  want.back() = std::byte{7};
  const std::vector<NamedView> tensors = {{"a", ConstView(b, DType::kU8, {1})},
                                          {"x\"", ConstView(x, DType::kF32, {2})}};
  const std::vector<NamedView> turned = {tensors[1], tensors[0]};
  EXPECT_EQ(safetensors_bytes(tensors, {{"k", "v\n"}}), want);
  EXPECT_EQ(safetensors_bytes(turned, {{"k", "v\n"}}), want);
  EXPECT_EQ(padded.size() % 8, 0u);
  EXPECT_EQ(safetensors_bytes({}), file_of("{}      ", 0));
}

TEST(Safetensors, WritesTheSameBytesInAnyLocale) {
  struct Grouped : std::numpunct<char> {
    [[nodiscard]] char do_thousands_sep() const override { return '.'; }
    [[nodiscard]] std::string do_grouping() const override { return "\3"; }
  };
  const std::vector<std::uint8_t> data(5000);
  const std::vector<NamedView> tensors = {{"a", ConstView(data.data(), DType::kU8, {5000})},
                                          {"b", ConstView(data.data(), DType::kU8, {1})}};
  const Bytes want = safetensors_bytes(tensors);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouped));
  const Bytes got = safetensors_bytes(tensors);
  std::locale::global(before);
  EXPECT_EQ(got, want);
}

TEST(Safetensors, WritesStridedViews) {
  std::vector<std::int32_t> data(24000);
  std::iota(data.begin(), data.end(), 0);
  ConstView view(data.data(), DType::kI32, {2, 3, 4000});
  std::swap(view.shape[0], view.shape[2]);
  std::swap(view.stride[0], view.stride[2]);  // [4000, 3, 2]
  const Bytes file = safetensors_bytes({{"t", view}});
  const auto got = values<std::int32_t>(Safetensors::from_memory(file).view("t"));
  ASSERT_EQ(got.size(), data.size());
  std::size_t i = 0;
  for (int c = 0; c < 4000; ++c)
    for (int b = 0; b < 3; ++b)
      for (int a = 0; a < 2; ++a) ASSERT_EQ(got[i++], a * 12000 + b * 4000 + c);

  ConstView repeated(data.data() + 5, DType::kI32, {3, 2});
  repeated.stride = {0, -1};
  const Bytes small = safetensors_bytes({{"t", repeated}});
  EXPECT_EQ(values<std::int32_t>(Safetensors::from_memory(small).view("t")),
            (std::vector<std::int32_t>{5, 4, 5, 4, 5, 4}));
}

TEST(Safetensors, ScalarsAndEmptyTensors) {
  const Bytes file = file_of(
      R"({"s":{"dtype":"I16","shape":[],"data_offsets":[0,2]},"e":{"dtype":"F64","shape":[3,0],"data_offsets":[2,2]},)"
      R"("f":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}})",
      2);
  const Safetensors tensors = Safetensors::from_memory(file);
  EXPECT_TRUE(tensors.entry(0).shape.empty());
  EXPECT_EQ(tensors.entry(0).bytes, 2);
  EXPECT_EQ(shape_text(tensors.view("s")), "[1]");
  EXPECT_EQ(tensors.entry(1).shape, (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(tensors.view("e").numel(), 0);
  EXPECT_EQ(shape_text(tensors.view("e")), "[3, 0]");

  const Bytes written = safetensors_bytes({{"e", tensors.view("e")}, {"f", tensors.view("f")}});
  EXPECT_EQ(Safetensors::from_memory(written).entry(0).shape, (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(Safetensors::from_memory(file_of("{}", 0)).size(), 0u);
}

TEST(Safetensors, ListsInHeaderOrderAndFindsByName) {
  const Bytes file = file_of(R"({"z":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                             R"("\u0061\n":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("":{"shape":[1,1,1,1,1,1,1,300],"data_offsets":[4,304],"dtype":"I8"}}   )",
                             304);
  const Safetensors tensors = Safetensors::from_memory(file, "label");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.entry(0).name, "z");
  EXPECT_EQ(tensors.entry(0).offset, 2);
  EXPECT_EQ(tensors.entry(1).name, "a\n");
  EXPECT_EQ(tensors.entry(2).name, "");
  EXPECT_EQ(tensors.entry(2).shape, (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 300}));
  EXPECT_EQ(tensors.find("a\n"), std::optional<std::size_t>(1));
  EXPECT_TRUE(tensors.contains(""));
  EXPECT_FALSE(tensors.contains("a"));
  EXPECT_EQ(*data_as<std::uint8_t>(tensors.view("a\n")), 1);
  try {
    (void)tensors.view("a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "label: has no tensor \"a\" among its 3");
  }
  EXPECT_THROW((void)tensors.entry(3), Error);
  EXPECT_FALSE(Safetensors::from_memory(file_of("{}", 0)).contains("x"));
}

TEST(Safetensors, UnalignedDataIsCopied) {
  const Bytes file = file_of(
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"d":{"dtype":"F64","shape":[2],"data_offsets":[3,19]}})",
      19);
  for (std::size_t shift = 0; shift < 8; ++shift) {  // and wherever the caller's bytes lie
    Bytes moved(file.size() + 8);
    std::memcpy(moved.data() + shift, file.data(), file.size());
    const Safetensors tensors = Safetensors::from_memory({moved.data() + shift, file.size()});
    const ConstView view = tensors.view("d");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 8, 0u);
    EXPECT_EQ(std::memcmp(view.data, file.data() + file.size() - 16, 16), 0);
    EXPECT_EQ(tensors.view("d").data, view.data);  // one copy
    const Safetensors shared = tensors;
    EXPECT_EQ(shared.view("d").data, view.data);
  }
}

TEST(Safetensors, RefusesABadLength) {
  EXPECT_EQ(verdict(Bytes{}), "f: truncated: 0 bytes, expected at least the 8 of the header length");
  EXPECT_EQ(verdict(Bytes(7)), "f: truncated: 7 bytes, expected at least the 8 of the header length");
  EXPECT_EQ(verdict(Bytes(8)), "f: header does not start with '{'");
  Bytes file = file_of("{}", 0);
  const auto with_length = [&](std::uint64_t length) {
    std::memcpy(file.data(), &length, 8);
    return verdict(file);
  };
  EXPECT_EQ(with_length(3), "f: truncated: header of 3 bytes in a file of 10 bytes");
  EXPECT_EQ(with_length(100000000), "f: truncated: header of 100000000 bytes in a file of 10 bytes");
  EXPECT_EQ(with_length(100000001), "f: header length is 100000001 bytes, expected at most 100000000");
  EXPECT_EQ(with_length(~0ull), "f: header length is 18446744073709551615 bytes, expected at most 100000000");
  // How torch.save begins, now and before 1.6.
  EXPECT_EQ(with_length(0x0808'0000'0403'4b50),
            "f: is a zip archive, as .pt and .ckpt files of PyTorch are, expected "
            "safetensors: nothing is unpickled");
  EXPECT_EQ(with_length(0x6c46'fc9c'0a8a'0280),
            "f: is a pickle, as .pt and .ckpt files of PyTorch are, expected "
            "safetensors: nothing is unpickled");
  EXPECT_EQ(with_length(1), "f: header does not end with '}' and spaces");
}

TEST(Safetensors, RefusesABadHeader) {
  EXPECT_EQ(verdict(" {}", 0), "f: header does not start with '{'");
  EXPECT_EQ(verdict("[]", 0), "f: header does not start with '{'");
  EXPECT_EQ(verdict("{}\n", 0), "f: header does not end with '}' and spaces");
  EXPECT_EQ(verdict("{}{}", 0).find("f: header: line 1, column 3: syntax error"), 0u);
  EXPECT_EQ(verdict("{\"t\":}", 0).find("f: header: line 1, column 6: syntax error"), 0u);
  EXPECT_EQ(verdict("{\"\xff\":{}}", 0).find("f: header: line 1, column 3: "), 0u);
  EXPECT_EQ(verdict(std::string("{\0}", 3), 0), "f: header: line 1, column 2: a zero byte, expected JSON text");
  EXPECT_EQ(verdict("{}", 1), "f: the data part has 1 bytes, the tensors end at 0");
}

TEST(Safetensors, RefusesBadEntries) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  EXPECT_EQ(of_fields(good), "accepted");
  const std::string p = "f: tensor \"t\": ";
  EXPECT_EQ(verdict(R"({"t":3})", 0), p + "found the number 3, expected an object with dtype, shape and data_offsets");
  EXPECT_EQ(verdict(R"({"t":null})", 0), p + "found null, expected an object with dtype, shape and data_offsets");
  EXPECT_EQ(of_fields(""), p + "dtype is missing");
  EXPECT_EQ(of_fields(R"("dtype":"F32","data_offsets":[0,8])"), p + "shape is missing");
  EXPECT_EQ(of_fields(R"("dtype":"F32","shape":[2])"), p + "data_offsets is missing");
  EXPECT_EQ(of_fields(good + R"(,"extra":1)"), p + "unknown key \"extra\", expected dtype, shape and data_offsets");
  EXPECT_EQ(of_fields(good + R"(,"dtype":"F32")"), p + "dtype appears twice");
  EXPECT_EQ(of_fields(good + R"(,"shape":[2])"), p + "shape appears twice");
  EXPECT_EQ(verdict("{\"t\":{" + good + "},\"t\":{" + good + "}}", 8),
            p + "appears twice in the header (second time at header byte 57)");
  EXPECT_EQ(verdict("{\"t\":{" + good + "},\"\\u0074\":{" + good + "}}", 8).find(p + "appears twice in the header"),
            0u);
}

TEST(Safetensors, RefusesUnknownTypesByName) {
  for (const char* name : {"F8_E4M3", "F8_E5M2", "F4", "C64", "f32", "", "F320"}) {
    EXPECT_EQ(of_fields(str("\"dtype\":\"", name, R"(","shape":[2],"data_offsets":[0,8])")),
              str("f: tensor \"t\": dtype \"", name,
                  "\" is not supported, expected one of F32, BF16, F16, F64, I8, U8, "
                  "I16, U16, I32, U32, I64, U64, BOOL"));
  }
  EXPECT_EQ(of_fields(R"("dtype":1)"), "f: tensor \"t\": dtype: found the number 1, expected a string");
  EXPECT_EQ(of_fields(R"("dtype":["F32"])"), "f: tensor \"t\": dtype: found an array, expected a string");
}

TEST(Safetensors, RefusesBadShapes) {
  const auto shape = [](const std::string& text) {
    return of_fields(R"("dtype":"F32","data_offsets":[0,8],"shape":)" + text);
  };
  const std::string p = "f: tensor \"t\": ";
  EXPECT_EQ(shape("[1,2,1]"), "accepted");
  EXPECT_EQ(shape("[1,1,1,1,1,1,1,2]"), "accepted");
  EXPECT_EQ(shape("[1,1,1,1,1,1,1,1,2]"), p + "shape has more than 8 sizes, the most that is supported");
  EXPECT_EQ(shape("2"), p + "shape: found the number 2, expected an array");
  EXPECT_EQ(shape("[2.0]"), p + "shape: found the number 2, expected a size");
  EXPECT_EQ(shape("[-2]"), p + "shape: found the number -2, expected a size");
  EXPECT_EQ(shape("[\"2\"]"), p + "shape: found the string \"2\", expected a size");
  EXPECT_EQ(shape("[[2]]"), p + "shape: found an array, expected a size");
  EXPECT_EQ(shape("[{}]"), p + "shape: found an object, expected a size");
  EXPECT_EQ(shape("[true]"), p + "shape: found a boolean, expected a size");
  EXPECT_EQ(shape("[3]"), p + "data_offsets [0, 8] hold 8 bytes, F32 [3] needs 12");
  EXPECT_EQ(shape("[]"), p + "data_offsets [0, 8] hold 8 bytes, F32 [] needs 4");
  EXPECT_EQ(shape("[0]"), p + "data_offsets [0, 8] hold 8 bytes, F32 [0] needs 0");
  EXPECT_EQ(shape("[18446744073709551615]"),
            p + "shape has the size 18446744073709551615, expected at most 9223372036854775807");
  EXPECT_EQ(shape("[99999999999999999999]"), p + "shape: found the number 1e+20, expected a size");
  for (const char* huge : {"[9223372036854775807]", "[4294967296, 4294967298]", "[2305843009213693952, 2, 0]",
                           "[4611686018427387904, 2, 1]", "[0, 4294967296, 4294967296]"}) {
    EXPECT_EQ(shape(huge), p + "F32 " + huge + ": the number of bytes does not fit 63 bits");
  }
}

TEST(Safetensors, RefusesBadOffsets) {
  const auto offsets = [](const std::string& text) {
    return of_fields(R"("dtype":"F32","shape":[2],"data_offsets":)" + text);
  };
  const std::string p = "f: tensor \"t\": ";
  EXPECT_EQ(offsets("[0]"), p + "data_offsets has 1 numbers, expected 2");
  EXPECT_EQ(offsets("[0,8,8]"), p + "data_offsets has more than 2 numbers");
  EXPECT_EQ(offsets("8"), p + "data_offsets: found the number 8, expected an array");
  EXPECT_EQ(offsets("[-8,0]"), p + "data_offsets: found the number -8, expected an offset");
  EXPECT_EQ(offsets("[0.0,8]"), p + "data_offsets: found the number 0, expected an offset");
  EXPECT_EQ(offsets("[8,0]"), p + "data_offsets [8, 0] run backwards");
  EXPECT_EQ(offsets("[0,9]"), p + "data_offsets [0, 9] end outside the data part of 8 bytes");
  EXPECT_EQ(offsets("[1,9]"), p + "data_offsets [1, 9] end outside the data part of 8 bytes");
  EXPECT_EQ(offsets("[18446744073709551608,18446744073709551615]"),
            p + "data_offsets [18446744073709551608, 18446744073709551615] end outside the data part of 8 bytes");
  EXPECT_EQ(offsets("[0,4]"), p + "data_offsets [0, 4] hold 4 bytes, F32 [2] needs 8");
}

TEST(Safetensors, RefusesHolesAndOverlaps) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t bytes) {
    return verdict(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                       R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                   bytes);
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "accepted");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "accepted");  // the order of the header is free
  EXPECT_EQ(two("[0,4]", "[3,7]", 7),
            "f: tensor \"b\": starts at byte 3 of the data, inside tensor \"a\", which ends at 4");
  EXPECT_EQ(two("[0,4]", "[0,4]", 4),
            "f: tensor \"b\": starts at byte 0 of the data, inside tensor \"a\", which ends at 4");
  EXPECT_EQ(two("[3,7]", "[0,4]", 7),
            "f: tensor \"a\": starts at byte 3 of the data, inside tensor \"b\", which ends at 4");
  EXPECT_EQ(two("[0,4]", "[5,9]", 9),
            "f: tensor \"b\": starts at byte 5 of the data, bytes 4 to 5 belong to no tensor");
  EXPECT_EQ(two("[1,5]", "[5,9]", 9),
            "f: tensor \"a\": starts at byte 1 of the data, bytes 0 to 1 belong to no tensor");
  EXPECT_EQ(two("[0,4]", "[4,8]", 9), "f: the data part has 9 bytes, the tensors end at 8");
  // An empty tensor may lie between two others, not inside one.
  const auto empty_at = [](int at) {
    return verdict(str(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[)", at, ",", at,
                       R"(]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
                   4);
  };
  EXPECT_EQ(empty_at(0), "accepted");
  EXPECT_EQ(empty_at(4), "accepted");
  EXPECT_EQ(empty_at(2), "f: tensor \"e\": starts at byte 2 of the data, inside tensor \"a\", which ends at 4");
}

TEST(Safetensors, MetadataIsTextToText) {
  const auto metadata = [](const std::string& text) { return verdict("{\"__metadata__\":" + text + "}", 0); };
  const std::string p = "f: __metadata__: ";
  EXPECT_EQ(metadata("{}"), "accepted");
  EXPECT_EQ(metadata(R"({"a":"1","b":""})"), "accepted");
  EXPECT_EQ(metadata("null"), p + "found null, expected an object");
  EXPECT_EQ(metadata("[]"), p + "found an array, expected an object");
  EXPECT_EQ(metadata(R"({"a":1})"), p + "key \"a\": found the number 1, expected a string");
  EXPECT_EQ(metadata(R"({"a":{}})"), p + "key \"a\": found an object, expected a string");
  EXPECT_EQ(metadata(R"({"a":null})"), p + "key \"a\": found null, expected a string");
  EXPECT_EQ(metadata(R"({"a":"1","a":"1"})"), p + "key \"a\" appears twice");
  EXPECT_EQ(metadata(R"({},"__metadata__":{})"), "f: __metadata__ appears twice");
}

TEST(Safetensors, WriterRefuses) {
  const float x[] = {1, 2};
  const auto refusal = [](const std::vector<NamedView>& tensors, const Metadata& metadata = {}) -> std::string {
    try {
      safetensors_bytes(tensors, metadata);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const ConstView good(x, DType::kF32, {2});
  EXPECT_EQ(refusal({{"a", good}}), "accepted");
  EXPECT_EQ(refusal({{"a", good}, {"a", ConstView(x, DType::kF64, {1})}}),
            "write_safetensors: tensor \"a\": given twice");
  EXPECT_EQ(refusal({{"__metadata__", good}}), "write_safetensors: tensor \"__metadata__\": the name is reserved");
  EXPECT_NE(refusal({{"\xff", good}}).find("the name is not UTF-8"), std::string::npos);
  EXPECT_NE(refusal({{"a", good}}, {{"k", "\xff"}}).find("metadata \"k\" is not UTF-8"), std::string::npos);
  EXPECT_NE(refusal({{"a", ConstView()}}).find("\"a\": the view is not given"), std::string::npos);
  EXPECT_NE(refusal({{"a", ConstView(nullptr, DType::kF32, {2})}}).find("\"a\": data is null"), std::string::npos);
  ConstView device = good;
  device.device = 0;
  EXPECT_NE(refusal({{"a", device}}).find("on device 0"), std::string::npos);
}

TEST(Safetensors, Files) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "safetensors_test";
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "a.safetensors";
  const double x[] = {1, 2, 3};
  write_safetensors(path, {{"x", ConstView(x, DType::kF64, {3})}}, {{"k", "v"}});
  const Safetensors first = Safetensors::read(path);
  EXPECT_EQ(first.label(), path.string());
  EXPECT_EQ(values<double>(first.view("x")), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(read_file(path), safetensors_bytes({{"x", ConstView(x, DType::kF64, {3})}}, {{"k", "v"}}));

  // Replacing the file leaves open readers on the old one, and nothing beside it.
  write_safetensors(path, {{"y", ConstView(x, DType::kF64, {2})}});
  EXPECT_EQ(values<double>(first.view("x")), (std::vector<double>{1, 2, 3}));
  EXPECT_TRUE(Safetensors::read(path).contains("y"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);

  // A write that cannot end leaves the old file and no other.
  EXPECT_THROW(write_safetensors(path, {{"z", ConstView(nullptr, DType::kF64, {2})}}), Error);
  EXPECT_THROW(write_safetensors(folder, {}), Error);
  EXPECT_THROW(write_safetensors(folder / "no" / "a", {}), Error);
  { AtomicFile abandoned(path); }
  EXPECT_TRUE(Safetensors::read(path).contains("y"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);

  Bytes bytes = read_file(path);
  bytes.pop_back();
  write_file(path, bytes);
  try {
    Safetensors::read(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() + ": tensor \"y\": data_offsets [0, 16] end outside the data part of 15 bytes");
  }
  write_file(path, Bytes{});
  EXPECT_THROW(Safetensors::read(path), Error);
  EXPECT_THROW(Safetensors::read(folder), Error);
  EXPECT_THROW(Safetensors::read(folder / "none"), Error);
  EXPECT_THROW(Safetensors::read("/dev/zero"), Error);
  std::filesystem::remove_all(folder);
}

TEST(Safetensors, FuzzSeeds) {
  const std::filesystem::path folder = std::filesystem::path(MHLA_SOURCE_DIR) / "mhla/io/fuzz_corpus/safetensors";
  for (const char* good : {"empty", "scalar", "two", "unaligned", "turned"})
    EXPECT_EQ(verdict(read_file(folder / good)), "accepted") << good;
  EXPECT_NE(verdict(read_file(folder / "hole")), "accepted");
}

RC_GTEST_PROP(Safetensors, AnySetOfTensorsComesBack, ()) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<NamedView> tensors;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    const DType dtype = *rc::gen::elementOf(std::vector<DType>(std::begin(kAllTypes), std::end(kAllTypes)));
    const auto shape =
        *rc::gen::container<std::vector<std::int64_t>>(*rc::gen::inRange(1, 5), rc::gen::inRange<std::int64_t>(0, 5));
    std::int64_t bytes = size_of(dtype);
    for (const std::int64_t size : shape) bytes *= size;
    memory.emplace_back(static_cast<std::size_t>(bytes));
    for (std::byte& byte : memory.back()) byte = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    tensors.push_back({str(*rc::gen::elementOf(std::vector<std::string>{"a", "\n", "é", "layer.0/"}), i),
                       ConstView(memory.back().data(), dtype, shape)});
  }
  const Bytes file = safetensors_bytes(tensors);
  const Safetensors back = Safetensors::from_memory(file);
  RC_ASSERT(back.size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ConstView view = back.view(tensors[i].name);
    RC_ASSERT(view.dtype == tensors[i].view.dtype);
    RC_ASSERT(shape_text(view) == shape_text(tensors[i].view));
    const bool same = memory[i].empty() || std::memcmp(view.data, memory[i].data(), memory[i].size()) == 0;
    RC_ASSERT(same);  // the macro evaluates both sides of an ||
  }
}

TEST(Safetensors, MutationsNeverCrash) {
  const Bytes good = file_of(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                             R"("b\u00e9":{"dtype":"I16","shape":[],"data_offsets":[8,10]}} )",
                             10);
  ASSERT_EQ(verdict(good), "accepted");
  int accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      Bytes bad = good;
      bad[at] = static_cast<std::byte>(byte);
      const std::string told = verdict(bad);
      accepted += told == "accepted";
      ASSERT_TRUE(told == "accepted" || told.substr(0, 3) == "f: ") << told;
    }
    EXPECT_NE(verdict(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at))), "accepted");
    Bytes longer = good;
    longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), std::byte{' '});
    EXPECT_NE(verdict(longer), "accepted");
  }
  EXPECT_GT(accepted, 10 * 256);  // any data byte may change
}

}  // namespace
}  // namespace mhla
