#include "mhla/testing/cases.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

#include "mhla/core/error.h"

namespace mhla {
namespace {

std::string layout_text(const Layout& layout) {
  if (layout.rank == 1) return str("1d:", layout.block_size);
  std::string grid, blocks;
  for (int axis = 3 - layout.rank; axis < 3; ++axis) {
    grid += str(grid.empty() ? "" : "x", layout.grid[axis]);
    blocks += str(blocks.empty() ? "" : "x", layout.blocks[axis]);
  }
  return str(layout.rank, "d:", grid, "/", blocks);
}

[[noreturn]] void unknown(std::string_view word) {
  fail("parse_case: '", word, "' is not a word of a case, expected what Case::name() writes");
}

template <class Number>
Number number(std::string_view text, std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) unknown(word);
  return value;
}

std::vector<std::int64_t> numbers(std::string_view text, char separator, std::string_view word) {
  std::vector<std::int64_t> values;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    values.push_back(number<std::int64_t>(text.substr(begin, end - begin), word));
    begin = end + 1;
  }
  return values;
}

Layout parse_layout(std::string_view text, std::string_view word) {
  if (text.size() < 4 || text.substr(1, 2) != "d:") unknown(word);
  const std::string_view sizes = text.substr(3);
  if (text[0] == '1') return Layout::line(number<std::int64_t>(sizes, word));
  const std::size_t slash = sizes.find('/');
  if (slash == std::string_view::npos) unknown(word);
  const auto grid = numbers(sizes.substr(0, slash), 'x', word), blocks = numbers(sizes.substr(slash + 1), 'x', word);
  if (text[0] == '2' && grid.size() == 2 && blocks.size() == 2)
    return Layout::grid2d(grid[0], grid[1], blocks[0], blocks[1]);
  if (text[0] == '3' && grid.size() == 3 && blocks.size() == 3)
    return Layout::grid3d({grid[0], grid[1], grid[2]}, {blocks[0], blocks[1], blocks[2]});
  unknown(word);
}

DType parse_dtype(std::string_view text, std::string_view word) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    if (name_of(dtype) == text) return dtype;
  }
  unknown(word);
}

constexpr std::pair<std::string_view, std::int64_t Case::*> kSizes[] = {
    {"B", &Case::B}, {"N", &Case::N}, {"H", &Case::H},      {"Hkv", &Case::Hkv},
    {"D", &Case::D}, {"E", &Case::E}, {"rows", &Case::rows}};
constexpr std::pair<std::string_view, bool Case::*> kFlags[] = {{"den", &Case::den},
                                                                {"per_head", &Case::per_head},
                                                                {"extend", &Case::extend},
                                                                {"fused", &Case::fused},
                                                                {"broadcast", &Case::broadcast}};

void parse_value(Case& c, std::string_view key, std::string_view value, std::string_view word) {
  for (const auto& [name, member] : kSizes) {
    if (name == key) {
      c.*member = number<std::int64_t>(value, word);
      return;
    }
  }
  if (key == "layout") {
    c.layout = parse_layout(value, word);
  } else if (key == "map") {
    c.feature_map = parse_feature_map(value);
  } else if (key == "norm") {
    c.normalizer = parse_normalizer(value);
  } else if (key == "eps") {
    c.eps = number<double>(value, word);
  } else if (key == "scale") {
    c.scale = number<double>(value, word);
  } else if (key == "cu") {
    c.cu_seqlens = numbers(value, ',', word);
  } else if (key == "seed") {
    c.seed = number<std::uint64_t>(value, word);
  } else {
    unknown(word);
  }
}

void parse_flag(Case& c, std::string_view word) {
  for (const auto& [name, member] : kFlags) {
    if (name == word) {
      c.*member = true;
      return;
    }
  }
  if (word == "bidirectional") {
    c.form = Form::kBidirectional;
  } else if (word == "causal") {
    c.form = Form::kCausal;
  } else {
    c.dtype = parse_dtype(word, word);
  }
}

// q and k: away from 0, where the slope of relu jumps; positive where a denominator needs positive features.
void fill_features(Tensor& x, Random& random, bool positive) {
  for (std::int64_t index = 0; index < x.numel(); ++index) {
    const double value = random.normal();
    const double away = (std::abs(value) + 0.05) * (value < 0 && !positive ? -1 : 1);
    x.set(index, away);
  }
}

// Entries the operator may read: the leading block, below and on the diagonal in the causal form.
bool mix_is_read(const Case& c, std::int64_t i, std::int64_t b) {
  if (i >= c.blocks() || b >= c.blocks()) return false;
  return c.form == Form::kBidirectional || b <= i;
}

void fill_mix(Tensor& mix, const Case& c, Random& random) {
  const std::int64_t L = c.mix_rows();
  const double M = static_cast<double>(std::max<std::int64_t>(1, c.blocks()));
  for (std::int64_t index = 0; index < mix.numel(); ++index) {
    const std::int64_t i = index / L % L, b = index % L;
    // Normalised: positive, so that no denominator comes near 0. Otherwise of both signs.
    const double value =
        c.normalizer == Normalizer::kNone ? random.normal() / std::sqrt(M) : (0.1 + 0.9 * random.uniform()) * 2 / M;
    mix.set(index, mix_is_read(c, i, b) ? value : std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

std::vector<Sequence> Case::sequences() const {
  std::vector<Sequence> list;
  if (cu_seqlens.empty()) {
    for (std::int64_t b = 0; b < B; ++b) list.push_back({b, 0, N});
  }
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    list.push_back({0, cu_seqlens[s], cu_seqlens[s + 1] - cu_seqlens[s]});
  }
  return list;
}

std::int64_t Case::blocks() const {
  std::int64_t M = cu_seqlens.empty() ? BlockMap(layout, N).blocks() : 0;
  for (const Sequence& sequence : sequences()) M = std::max(M, BlockMap(layout, sequence.length).blocks());
  return M;
}

std::int64_t Case::mix_rows() const { return rows > 0 ? rows : blocks(); }

std::string Case::name() const {
  std::ostringstream text;
  text << std::setprecision(17);
  text << (form == Form::kCausal ? "causal " : "bidirectional ") << name_of(dtype);
  for (const auto& [key, member] : kSizes) {
    if (this->*member != 0 || key != "rows") text << " " << key << "=" << this->*member;
  }
  text << " layout=" << layout_text(layout) << " map=" << name_of(feature_map) << " norm=" << name_of(normalizer)
       << " eps=" << eps;
  if (scale) text << " scale=" << *scale;
  for (const auto& [word, member] : kFlags) {
    if (this->*member) text << " " << word;
  }
  for (std::size_t s = 0; s < cu_seqlens.size(); ++s) text << (s == 0 ? " cu=" : ",") << cu_seqlens[s];
  text << " seed=" << seed;
  return text.str();
}

Case parse_case(std::string_view name) {
  Case c;
  std::istringstream text{std::string(name)};
  for (std::string word; text >> word;) {
    const std::string_view view = word;
    const std::size_t equals = view.find('=');
    if (equals == std::string_view::npos)
      parse_flag(c, view);
    else
      parse_value(c, view.substr(0, equals), view.substr(equals + 1), view);
  }
  return c;
}

CaseInputs::CaseInputs(const Case& c) {
  Random random(c.seed);
  const bool positive = c.feature_map == FeatureMap::kIdentity && c.normalizer != Normalizer::kNone;
  const std::int64_t kv_batch = c.broadcast && c.B > 0 ? 1 : c.B;
  const auto make = [&](std::int64_t batch, std::int64_t heads, std::int64_t size, bool features) -> ConstView {
    Tensor& x = memory.emplace_back(c.dtype, std::vector<std::int64_t>{batch, c.N, heads, size});
    if (features)
      fill_features(x, random, positive);
    else
      x.normal(random);
    ConstView view = std::as_const(x).view();
    if (batch != c.B) view.shape[0] = c.B, view.stride[0] = 0;
    return view;
  };
  q = make(c.B, c.H, c.D, true);
  k = make(kv_batch, c.Hkv, c.D, true);
  v = make(kv_batch, c.Hkv, c.E, false);
  dout = make(kv_batch, c.H, c.E, false);
  if (c.den) {
    // Features of a denominator are positive, whatever the numerator's are.
    for (const auto& [view, heads] : {std::pair{&maybe_q_den, c.H}, {&maybe_k_den, c.Hkv}}) {
      Tensor& x = memory.emplace_back(c.dtype, std::vector<std::int64_t>{c.B, c.N, heads, c.D});
      fill_features(x, random, true);
      *view = std::as_const(x).view();
    }
  }
  if (c.fused && !c.broadcast) {  // move q, k, v into one tensor with a gap of NaN at the end of each token
    const std::int64_t width = c.H * c.D + c.Hkv * (c.D + c.E) + 3;
    Tensor& fused = memory.emplace_back(c.dtype, std::vector<std::int64_t>{c.B, c.N, width});
    std::int64_t column = 0;
    for (ConstView* view : {&q, &k, &v}) {
      const std::int64_t heads = view->shape[2], size = view->shape[3];
      for (std::int64_t index = 0; index < view->numel(); ++index) {
        const std::int64_t token = index / (heads * size);
        fused.set(token * width + column + index % (heads * size), load_f64(view->data, view->dtype, index));
      }
      view->data = static_cast<const std::byte*>(fused.data()) + column * size_of(c.dtype);
      view->stride = {c.N * width, width, size, 1};
      column += heads * size;
    }
  }
  const std::int64_t L = c.mix_rows();
  const DType mix_dtype = c.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  Tensor& mix_memory = memory.emplace_back(
      mix_dtype, c.per_head ? std::vector<std::int64_t>{c.H, L, L} : std::vector<std::int64_t>{L, L});
  fill_mix(mix_memory, c, random);
  mix = std::as_const(mix_memory).view();
  cu_memory = c.cu_seqlens;
  if (!cu_memory.empty())
    maybe_cu_seqlens = ConstView(cu_memory.data(), DType::kI64, {static_cast<std::int64_t>(cu_memory.size())});
}

CaseInputs CaseInputs::alias() const {
  CaseInputs other;
  other.q = q, other.k = k, other.v = v, other.dout = dout;
  other.maybe_q_den = maybe_q_den, other.maybe_k_den = maybe_k_den;
  other.mix = mix;
  other.maybe_cu_seqlens = maybe_cu_seqlens;
  return other;
}

CaseInputs CaseInputs::to(DType dtype) const {
  CaseInputs other;
  const auto copy = [&](const ConstView& from, DType as) -> ConstView {
    if (!from.given()) return {};
    other.memory.push_back(contiguous(from).to(as));
    return std::as_const(other.memory.back()).view();
  };
  other.q = copy(q, dtype), other.k = copy(k, dtype), other.v = copy(v, dtype), other.dout = copy(dout, dtype);
  other.maybe_q_den = copy(maybe_q_den, dtype), other.maybe_k_den = copy(maybe_k_den, dtype);
  other.mix = copy(mix, dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  other.cu_memory = cu_memory;
  if (maybe_cu_seqlens.given())
    other.maybe_cu_seqlens =
        ConstView(other.cu_memory.data(), DType::kI64, {static_cast<std::int64_t>(other.cu_memory.size())});
  return other;
}

BidirectionalParams bidirectional_params(const Case& c, const CaseInputs& in) {
  BidirectionalParams params;
  params.q = in.q, params.k = in.k, params.v = in.v;
  params.maybe_q_den = in.maybe_q_den, params.maybe_k_den = in.maybe_k_den;
  params.mix = in.mix;
  params.maybe_cu_seqlens = in.maybe_cu_seqlens;
  params.layout = c.layout;
  params.feature_map = c.feature_map;
  params.normalizer = c.normalizer;
  params.eps = c.eps;
  params.scale = c.scale.value_or(1.0);
  return params;
}

ChunkwiseParams chunkwise_params(const Case& c, const CaseInputs& in) {
  ChunkwiseParams params;
  params.q = in.q, params.k = in.k, params.v = in.v;
  params.maybe_q_den = in.maybe_q_den, params.maybe_k_den = in.maybe_k_den;
  params.mix = in.mix;
  params.maybe_cu_seqlens = in.maybe_cu_seqlens;
  params.chunk = c.layout.block_size;
  params.feature_map = c.feature_map;
  params.normalizer = c.normalizer;
  params.eps = c.eps;
  params.scale = c.scale;
  params.beyond_mix = c.extend ? BeyondMix::kExtend : BeyondMix::kError;
  return params;
}

}  // namespace mhla
