// A streaming state as named tensors and text, and back. Saved are mix, finished summaries and the rings; prefixes and
// running sums are computed again on load, with the same bits. Summaries lie in panels of the instruction set that
// wrote them and are rearranged where the reader's differ.
#include <charconv>
#include <cmath>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla {
namespace {

constexpr const char* kLoad = "StreamingState::load";
constexpr std::string_view kFormat = "mhla streaming 1";

std::string number_text(double value) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);  // the shortest that reads back exactly
  return error == std::errc() ? std::string(text, end) : std::string();
}

// Metadata by key, with errors that name the key, its value and what was expected.
class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& metadata) : metadata_(metadata) {}

  [[nodiscard]] std::string_view text(const std::string& key) const {
    const auto entry = metadata_.find(key);
    if (entry == metadata_.end()) fail(kLoad, ": metadata has no '", key, "'");
    return entry->second;
  }
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most = INT64_MAX) const {
    const auto value = number<std::int64_t>(key, "an integer");
    if (value < least || value > most) {
      fail(kLoad, ": metadata '", key, "' is ", value, ", expected ", least, " to ", most);
    }
    return value;
  }
  [[nodiscard]] double real(const std::string& key) const { return number<double>(key, "a number"); }
  template <class Value>
  [[nodiscard]] Value one_of(const std::string& key,
                             std::initializer_list<std::pair<std::string_view, Value>> names) const {
    std::vector<std::string_view> list;
    for (const auto& [name, value] : names) list.push_back(name);
    return std::next(names.begin(), static_cast<std::ptrdiff_t>(index_of(key, list)))->second;
  }
  [[nodiscard]] std::size_t index_of(const std::string& key, std::span<const std::string_view> names) const {
    const std::string_view got = text(key);
    std::string list;
    for (std::size_t index = 0; index < names.size(); ++index) {
      if (names[index] == got) return index;
      list += str(list.empty() ? "" : ", ", names[index]);
    }
    fail(kLoad, ": metadata '", key, "' is '", got, "', expected one of ", list);
  }

 private:
  template <class Value>
  [[nodiscard]] Value number(const std::string& key, const char* what) const {
    const std::string_view got = text(key);
    Value value{};
    const auto [end, error] = std::from_chars(got.data(), got.data() + got.size(), value);
    if (error != std::errc() || end != got.data() + got.size()) {
      fail(kLoad, ": metadata '", key, "' is '", got, "', expected ", what);
    }
    return value;
  }
  const std::map<std::string, std::string>& metadata_;
};

const ConstView& find(const std::vector<NamedView>& views, std::string_view name) {
  const ConstView* found = nullptr;
  for (const NamedView& view : views) {
    if (view.name != name) continue;
    if (found) fail(kLoad, ": tensor '", name, "' is given twice");
    found = &view.view;
  }
  if (!found) fail(kLoad, ": tensor '", name, "' is missing");
  return *found;
}

// The tensor of that name, contiguous, of exactly this shape and type.
const ConstView& find(const std::vector<NamedView>& views, std::string_view name,
                      const std::vector<std::int64_t>& shape, DType dtype) {
  const ConstView& view = find(views, name);
  const std::vector<std::int64_t> got(view.shape.begin(), view.shape.begin() + view.rank);
  if (got != shape) fail(kLoad, ": '", name, "' has shape ", shape_text(got), ", expected ", shape_text(shape));
  if (view.dtype != dtype) {
    fail(kLoad, ": '", name, "' has dtype ", name_of(view.dtype), ", expected ", name_of(dtype));
  }
  if (view.device != kCpu) fail(kLoad, ": '", name, "' is on device ", view.device, ", expected host memory");
  if (!view.contiguous()) fail(kLoad, ": '", name, "' has strides, expected a contiguous tensor");
  if (view.data == nullptr && view.numel() > 0) fail(kLoad, ": '", name, "' has null data");
  return view;
}

void copy_bytes(const ConstView& from, std::byte* to, int device) {
  const std::int64_t bytes = from.numel() * size_of(from.dtype);
  if (bytes == 0) return;
  if (device == kCpu)
    std::memcpy(to, from.data, static_cast<std::size_t>(bytes));
  else
    device_copy(to, from.data, bytes, device);
}

// Rows of summaries from one arrangement to another. Only what counts: padding stays zero.
template <class T>
void copy_summaries(const ConstView& from, const SummaryLayout& layout, const SummaryLayout& target, std::byte* to) {
  const std::int64_t rows = from.numel() / layout.stride();
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* source = data_as<T>(from) + row * layout.stride();
    T* copy = reinterpret_cast<T*>(to) + row * target.stride();
    for (std::int64_t d = 0; d < layout.D; ++d) {
      for (std::int64_t e = 0; e < layout.E; ++e) copy[target.index(d, e)] = source[layout.index(d, e)];
      if (layout.normalized) copy[target.z_offset() + d] = source[layout.z_offset() + d];
    }
  }
}

}  // namespace

std::vector<NamedView> StreamingState::views() const {
  const Impl& s = *impl_;
  const StreamingConfig& c = s.config;
  const std::int64_t stride = s.layout.stride();
  if (s.on_device()) {
    s.staged.resize(s.bytes().size());
    device_wait(c.device);
  }
  std::vector<NamedView> views;
  const auto add = [&](const char* name, const std::byte* data, DType dtype, const std::vector<std::int64_t>& shape) {
    ConstView view(data, dtype, shape);
    if (s.on_device()) {
      view.data = s.staged.data() + (data - s.bytes().data());
      device_copy(const_cast<void*>(view.data), data, view.numel() * size_of(dtype), c.device);
    }
    views.push_back({name, view});
  };
  const DType mix_dtype = c.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (s.Hm > 1)
    add("mix", s.mix, mix_dtype, {s.Hm, s.L, s.L});
  else
    add("mix", s.mix, mix_dtype, {s.L, s.L});
  add("summaries", s.summaries, s.element, {s.blocks_kept(), c.Hkv, stride});
  if (s.extend()) add("summary_sum", s.sum, s.element, {c.Hkv, stride});
  add("k", s.k, s.key_dtype, {s.ring, c.Hkv, c.D});
  add("v", s.v, c.dtype, {s.ring, c.Hkv, c.E});
  if (c.den_features) add("k_den", s.k_den, s.key_dtype, {s.ring, c.Hkv, c.D});
  return views;
}

std::map<std::string, std::string> StreamingState::metadata() const {
  const Impl& s = *impl_;
  const StreamingConfig& c = s.config;
  return {
      {"format", std::string(kFormat)},
      {"candidate", s.candidate->name},
      {"instruction_set", s.candidate->instruction_set()},
      {"lanes", str(s.layout.lanes)},
      {"H", str(c.H)},
      {"Hkv", str(c.Hkv)},
      {"D", str(c.D)},
      {"E", str(c.E)},
      {"chunk", str(c.chunk)},
      {"dtype", std::string(name_of(c.dtype))},
      {"feature_map", std::string(name_of(c.feature_map))},
      {"normalizer", std::string(name_of(c.normalizer))},
      {"eps", number_text(c.eps)},
      {"scale", number_text(*c.scale)},
      {"beyond_mix", s.extend() ? "extend" : "error"},
      {"den_features", c.den_features ? "true" : "false"},
      {"rollback", str(*c.rollback)},
      {"position", str(s.at.position)},
      {"furthest", str(s.at.furthest)},
  };
}

StreamingState StreamingState::load(const std::vector<NamedView>& views,
                                    const std::map<std::string, std::string>& metadata, int device) {
  const Reader read(metadata);
  if (read.text("format") != kFormat) {
    fail(kLoad, ": metadata 'format' is '", read.text("format"), "', expected '", kFormat, "'");
  }
  StreamingConfig c;
  c.H = read.integer("H", 1), c.Hkv = read.integer("Hkv", 1), c.D = read.integer("D", 1), c.E = read.integer("E", 1);
  c.chunk = read.integer("chunk", 1);
  c.dtype = read.one_of<DType>(
      "dtype", {{"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f64", DType::kF64}});
  c.feature_map = static_cast<FeatureMap>(read.index_of("feature_map", kFeatureMaps));
  c.normalizer = read.one_of<Normalizer>("normalizer", {{"paper", Normalizer::kPaper}, {"none", Normalizer::kNone}});
  c.eps = read.real("eps"), c.scale = read.real("scale");
  c.beyond_mix = read.one_of<BeyondMix>("beyond_mix", {{"error", BeyondMix::kError}, {"extend", BeyondMix::kExtend}});
  c.den_features = read.one_of<bool>("den_features", {{"true", true}, {"false", false}});
  c.rollback = read.integer("rollback", 0);
  if (read.text("candidate") == kStreamingCuda.name) c.device = device;
  // The rings are as long as the metadata say before anything of that size is allocated.
  const ConstView& v = find(views, "v");
  if (v.rank != 3 || v.shape[0] != c.chunk + *c.rollback) {
    fail(kLoad, ": 'v' has shape ", shape_text(v), ", expected [", c.chunk + *c.rollback, ", ", c.Hkv, ", ", c.E, "]");
  }

  StreamingState state(c, find(views, "mix"), read.text("candidate"));
  Impl& s = *state.impl_;
  s.at.furthest = read.integer("furthest", 0, state.capacity());
  s.at.position = read.integer("position", std::max<std::int64_t>(0, s.at.furthest - *c.rollback), s.at.furthest);
  s.at.base = s.extend() ? oldest_block(s.at.furthest / c.chunk, s.L, s.back) : 0;
  SummaryLayout layout = s.layout;
  layout.lanes = read.integer("lanes", s.layout.lanes == 0 ? 0 : 1, s.layout.lanes == 0 ? 0 : 64);
  const auto restore = [&](const char* name, const std::vector<std::int64_t>& shape, std::byte* to) {
    const ConstView& from = find(views, name, shape, s.element);
    if (s.on_device())
      copy_bytes(from, to, c.device);  // plain rows on both sides
    else if (s.element == DType::kF64)
      copy_summaries<double>(from, layout, s.layout, to);
    else
      copy_summaries<float>(from, layout, s.layout, to);
  };
  restore("summaries", {s.blocks_kept(), c.Hkv, layout.stride()}, s.summaries);
  if (s.extend()) restore("summary_sum", {c.Hkv, layout.stride()}, s.sum);
  copy_bytes(find(views, "k", {s.ring, c.Hkv, c.D}, s.key_dtype), s.k, c.device);
  copy_bytes(find(views, "v", {s.ring, c.Hkv, c.E}, c.dtype), s.v, c.device);
  if (c.den_features) copy_bytes(find(views, "k_den", {s.ring, c.Hkv, c.D}, s.key_dtype), s.k_den, c.device);
  s.candidate->rebuild(s, /*same_chunk=*/false);
  return state;
}

}  // namespace mhla
