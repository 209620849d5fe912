#include "mhla/io/codecs/zip_records.h"

#include <zlib.h>

#include <algorithm>

namespace mhla {

std::uint32_t zip_checksum(std::uint32_t so_far, std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(so_far, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<z_size_t>(bytes.size())));
}

void inflate_member(std::span<const std::byte> packed, std::span<std::byte> out, const std::string& label) {
  struct Stream {
    z_stream z{};
    ~Stream() { inflateEnd(&z); }
  } stream;
  z_stream& z = stream.z;
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) fail(label, ": zlib could not start");  // no header of its own
  constexpr std::size_t kMost = std::size_t{1} << 30;                               // zlib counts in 32 bits
  std::size_t in = 0, made = 0;
  Bytef beyond = 0;  // a byte that must stay empty, so that a member that is too long is seen
  for (int status = Z_OK; status != Z_STREAM_END;) {
    const std::size_t in_now = std::min(kMost, packed.size() - in), out_now = std::min(kMost, out.size() - made);
    z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed.data() + in));
    z.avail_in = static_cast<uInt>(in_now);
    z.next_out = out_now > 0 ? reinterpret_cast<Bytef*>(out.data() + made) : &beyond;
    z.avail_out = out_now > 0 ? static_cast<uInt>(out_now) : 1;
    status = inflate(&z, Z_NO_FLUSH);
    in += in_now - z.avail_in;
    const std::size_t written = (out_now > 0 ? out_now : 1) - z.avail_out;
    if (out_now == 0 && written > 0) fail(label, ": damaged zip: it unpacks to more than it says");
    made += written;
    if (status != Z_OK && status != Z_STREAM_END)
      fail(label, ": damaged zip: ", z.msg != nullptr ? z.msg : "the packed data end too early");
  }
  if (made != out.size()) fail(label, ": damaged zip: it unpacks to ", made, " bytes, expected ", out.size());
}

}  // namespace mhla
