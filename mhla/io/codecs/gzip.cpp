#include "mhla/io/codecs/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr int kGzipWindow = 15 + 16;        // the largest window, with gzip's head and checksum
constexpr std::uint64_t kBestRatio = 1032;  // deflate cannot do better: a bound on what a file can hold

// zlib counts in 32 bits.
std::uint32_t piece(std::size_t count) { return static_cast<std::uint32_t>(std::min<std::size_t>(count, 1u << 30)); }

// zlib takes a pointer to mutable bytes and leaves them alone.
Bytef* input(const std::byte* bytes) { return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes)); }

struct Inflate {
  z_stream stream{};
  Inflate() {
    if (inflateInit2(&stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~Inflate() { inflateEnd(&stream); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
};

// The length that the last four bytes promise, modulo 2^32: a hint for the first allocation.
std::uint64_t promised(std::span<const std::byte> bytes) {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < 4; ++i) size |= std::to_integer<std::uint64_t>(bytes[bytes.size() - 4 + i]) << (8 * i);
  return size;
}

}  // namespace

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

std::vector<std::byte> gunzip(std::span<const std::byte> bytes, const std::string& label, std::uint64_t limit) {
  if (!is_gzip(bytes) || bytes.size() < 18) fail(label, ": is no gzip file, expected 1f 8b and at least 18 bytes");
  Inflate inflation;
  z_stream& stream = inflation.stream;
  std::vector<std::byte> out;
  out.reserve(std::min({promised(bytes), limit, bytes.size() * kBestRatio}));
  std::array<std::byte, std::size_t{1} << 16> buffer;
  std::size_t taken = 0;
  int status = Z_OK;
  while (status != Z_STREAM_END || taken < bytes.size()) {
    if (status == Z_STREAM_END) {  // another member, or something that does not belong here
      if (!is_gzip(bytes.subspan(taken))) fail(label, ": ", bytes.size() - taken, " bytes after the end of gzip data");
      inflateReset(&stream);
    }
    stream.next_in = input(bytes.data() + taken);
    const std::uint32_t offered = stream.avail_in = piece(bytes.size() - taken);
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    status = inflate(&stream, Z_NO_FLUSH);
    const std::size_t read = offered - stream.avail_in;
    const std::size_t made = buffer.size() - stream.avail_out;
    taken += read;
    if (out.size() + made > limit) fail(label, ": more than ", limit, " bytes unpacked, the most that is read here");
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(made));
    if (status == Z_BUF_ERROR || (status == Z_OK && read == 0 && made == 0))
      fail(label, ": gzip data ends too early, after ", out.size(), " bytes unpacked");
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status != Z_OK && status != Z_STREAM_END)
      fail(label, ": damaged gzip data: ", stream.msg != nullptr ? stream.msg : zError(status));
  }
  return out;
}

std::vector<std::byte> gzip(std::span<const std::byte> bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  struct End {
    z_stream& stream;
    ~End() { deflateEnd(&stream); }
  } const end{stream};
  std::vector<std::byte> out;
  std::array<std::byte, std::size_t{1} << 16> buffer;
  std::size_t taken = 0;
  for (int status = Z_OK; status != Z_STREAM_END;) {
    const std::uint32_t offered = piece(bytes.size() - taken);
    stream.next_in = input(bytes.data() + taken);
    stream.avail_in = offered;
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    status = deflate(&stream, taken + offered == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    taken += offered - stream.avail_in;
    out.insert(out.end(), buffer.begin(), buffer.end() - static_cast<std::ptrdiff_t>(stream.avail_out));
  }
  return out;
}

}  // namespace mhla
