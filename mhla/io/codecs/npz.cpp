#include "mhla/io/codecs/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "mhla/core/error.h"
#include "mhla/io/codecs/zip_records.h"

namespace mhla {
namespace {

constexpr std::string_view kEnding = ".npy";

struct Directory {
  std::uint64_t begin = 0, size = 0, members = 0;
};

// The end record is the last 22 bytes and a comment of up to 65535: searched from the end.
Directory find_directory(std::span<const std::byte> bytes, const std::string& label) {
  if (bytes.size() < kZipEndSize) fail(label, ": is not an npz file: ", bytes.size(), " bytes are too few for a zip");
  const std::size_t lowest = bytes.size() - std::min<std::size_t>(bytes.size(), kZipEndSize + 65535);
  for (std::size_t at = bytes.size() - kZipEndSize + 1; at-- > lowest;) {
    ZipReader end(bytes, label);
    end.seek(at);
    if (end.u32() != kZipEnd) continue;
    end.skip(6);  // disks, members on this one
    Directory directory;
    directory.members = end.u16();
    directory.size = end.u32();
    directory.begin = end.u32();
    const bool whole = directory.members == 0xffff || directory.size == 0xffffffff || directory.begin == 0xffffffff;
    if (whole && at >= kZip64LocatorSize) {
      ZipReader locator(bytes, label);
      locator.seek(at - kZip64LocatorSize);
      if (locator.u32() != kZip64Locator) return directory;
      locator.skip(4);
      const std::uint64_t place = locator.u64();
      ZipReader record(bytes, label);
      record.seek(place);
      if (record.u32() != kZip64End) fail(label, ": damaged zip: no zip64 record at ", place);
      record.skip(8 + 2 + 2 + 4 + 4 + 8);  // its size, versions, disks, members on this disk
      directory.members = record.u64();
      directory.size = record.u64();
      directory.begin = record.u64();
    }
    return directory;
  }
  fail(label, ": is not an npz file: it has no zip directory at its end");
}

std::string shown(const std::string& name) {
  std::string text;
  for (const char c : name.substr(0, 64)) text += c >= ' ' && c < 127 ? c : '?';
  return text;
}

// What is 0xffffffff in the entry comes from the zip64 field of the extra part, in this order.
void read_zip64(ZipReader extra, std::uint64_t end, std::initializer_list<std::uint64_t*> values) {
  while (extra.at() + 4 <= end) {
    const std::uint16_t id = extra.u16(), size = extra.u16();
    if (extra.at() + size > end) extra.refuse("an extra field that does not fit");
    if (id != 1) {
      extra.skip(size);
      continue;
    }
    const std::uint64_t stop = extra.at() + size;
    for (std::uint64_t* value : values) {
      if (*value != 0xffffffff) continue;
      if (extra.at() + 8 > stop) extra.refuse("a zip64 field that is too short");
      *value = extra.u64();
    }
    return;
  }
}

}  // namespace

Npz Npz::from_memory(std::span<const std::byte> bytes, const std::string& label, const NpzLimits& limits) {
  Npz npz;
  npz.bytes_ = bytes;
  npz.label_ = label;
  npz.limits_ = limits;
  npz.read_directory();
  return npz;
}

Npz Npz::read(const std::filesystem::path& path, const NpzLimits& limits) {
  const auto file = std::make_shared<MappedFile>(path);
  Npz npz = from_memory(file->bytes(), path.string(), limits);
  npz.file_ = file;
  return npz;
}

void Npz::read_directory() {
  const Directory directory = find_directory(bytes_, label_);
  if (directory.members > limits_.max_members)
    fail(label_, ": has ", directory.members, " members, expected at most ", limits_.max_members);
  if (directory.begin > bytes_.size() || directory.size > bytes_.size() - directory.begin)
    fail(label_, ": damaged zip: its directory lies outside of the file");
  ZipReader reader(bytes_.first(static_cast<std::size_t>(directory.begin + directory.size)), label_);
  reader.seek(directory.begin);
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < directory.members; ++i) {
    if (reader.u32() != kZipEntry) reader.refuse("an entry of the directory without its signature");
    reader.skip(4);  // versions
    const std::uint16_t flags = reader.u16(), method = reader.u16();
    reader.skip(4);  // time
    Member member;
    member.crc = reader.u32();
    member.packed = reader.u32();
    member.unpacked = reader.u32();
    const std::uint16_t name_size = reader.u16(), extra_size = reader.u16(), comment_size = reader.u16();
    reader.skip(8);  // disk, attributes
    member.header = reader.u32();
    member.name = reader.text(name_size);
    read_zip64(reader, reader.at() + extra_size, {&member.unpacked, &member.packed, &member.header});
    reader.skip(std::uint64_t{extra_size} + comment_size);
    if (member.name.size() <= kEnding.size() ||
        member.name.compare(member.name.size() - kEnding.size(), kEnding.size(), kEnding) != 0)
      fail(label_, ": member '", shown(member.name), "' is not an npy array");
    member.name.resize(member.name.size() - kEnding.size());
    if ((flags & 1) != 0) fail(label_, ": member '", shown(member.name), "' is encrypted");
    if (method != 0 && method != 8)
      fail(label_, ": member '", shown(member.name), "' is packed by method ", method, ", expected stored or deflated");
    member.deflated = method == 8;
    if (!member.deflated && member.packed != member.unpacked)
      fail(label_, ": member '", shown(member.name), "' is stored with two different sizes");
    if (!names.insert(member.name).second) fail(label_, ": member '", shown(member.name), "' is there twice");
    members_.push_back(std::move(member));
  }
}

std::vector<std::string> Npz::names() const {
  std::vector<std::string> all;
  for (const Member& member : members_) all.push_back(member.name);
  return all;
}

bool Npz::contains(const std::string& name) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.name == name; });
}

std::span<const std::byte> Npz::packed_bytes(const Member& member) const {
  ZipReader local(bytes_, label_);
  local.seek(member.header);
  if (local.u32() != kZipLocal) local.refuse("a member without its header");
  local.skip(22);
  const std::uint16_t name_size = local.u16(), extra_size = local.u16();
  local.skip(std::uint64_t{name_size} + extra_size);
  if (member.packed > bytes_.size() - local.at())
    fail(label_, ": member '", shown(member.name), "' has ", member.packed, " bytes, more than the file has left");
  return bytes_.subspan(static_cast<std::size_t>(local.at()), static_cast<std::size_t>(member.packed));
}

NpyArray Npz::array(const std::string& name) const {
  const auto member =
      std::find_if(members_.begin(), members_.end(), [&](const Member& one) { return one.name == name; });
  if (member == members_.end()) {
    std::string there;
    for (const Member& one : members_) there += str(there.empty() ? "" : ", ", shown(one.name));
    fail(label_, ": has no array '", name, "', only ", there.empty() ? "an empty list" : there);
  }
  const std::string label = str(label_, ": ", shown(name));
  std::span<const std::byte> bytes = packed_bytes(*member);
  std::shared_ptr<std::byte[]> unpacked;
  if (member->deflated) {
    if (member->unpacked > limits_.max_unpacked)
      fail(label, ": unpacks to ", member->unpacked, " bytes, more than the ", limits_.max_unpacked, " allowed");
    // Deflate packs 1032 bytes into one at best: what claims more is refused before memory is taken.
    if (member->unpacked / 1032 > member->packed + 1)
      fail(label, ": damaged zip: ", member->packed, " bytes cannot unpack to ", member->unpacked);
    unpacked = std::shared_ptr<std::byte[]>(new std::byte[static_cast<std::size_t>(member->unpacked)]);
    inflate_member(bytes, {unpacked.get(), static_cast<std::size_t>(member->unpacked)}, label);
    bytes = {unpacked.get(), static_cast<std::size_t>(member->unpacked)};
  }
  if (zip_checksum(0, bytes) != member->crc) fail(label, ": damaged zip: the checksum is wrong");
  NpyArray array = npy_array(bytes, label);
  if (array.memory == nullptr) {
    if (unpacked != nullptr)
      array.memory = unpacked;
    else
      array.memory = file_;
  }
  return array;
}

}  // namespace mhla
