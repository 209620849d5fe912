// The fixed lists of cases. Where a gradient would be nothing but cancellation, eps is large enough to
// leave something: with one block and the `paper` normaliser mix cancels out of the output, and with
// one feature q does, so any two orders of summation differ by more than their rounding.
#include <cstdlib>
#include <utility>

#include "mhla/testing/cases.h"

namespace mhla {
namespace {

std::vector<Case> selected(std::vector<Case> cases) {
  if (const char* only = std::getenv("MHLA_CASE")) return {parse_case(only)};
  std::uint64_t seed = 1;
  for (Case& c : cases) {
    c.seed = seed++;
    if (c.blocks() <= 1) c.eps = 20;
  }
  return cases;
}

Case base(Form form) {
  Case c;
  c.form = form;
  c.normalizer = form == Form::kCausal ? Normalizer::kNone : Normalizer::kPaper;
  c.B = 2, c.H = 2, c.Hkv = 2;
  return c;
}

void add_lengths(std::vector<Case>& cases, Form form) {
  for (const std::int64_t N : {0, 1, 15, 16, 17, 31, 33, 70}) {
    Case c = base(form);
    c.N = N;
    cases.push_back(c);
    c.normalizer = form == Form::kCausal ? Normalizer::kPaper : Normalizer::kNone;
    c.eps = 0.1;
    cases.push_back(c);
  }
  Case c = base(form);
  c.B = 0, c.N = 20;
  cases.push_back(c);
  c.B = 1, c.layout = Layout::line(1), c.eps = 0.1;  // one token per block
  cases.push_back(c);
  c.layout = Layout::line(1000);  // one block, larger than the sequence
  cases.push_back(c);
  c.layout = Layout::line(7), c.rows = 9;  // more rows of mix than blocks
  cases.push_back(c);
}

void add_head_sizes(std::vector<Case>& cases, Form form) {
  constexpr std::int64_t kSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 24, 32, 40, 64, 65, 72, 96, 128, 200, 256};
  constexpr std::int64_t kCount = std::size(kSizes);
  for (std::int64_t index = 0; index < kCount; ++index) {
    for (const std::int64_t away : {0, 7}) {  // E = D, and a very different E
      Case c = base(form);
      c.B = 1, c.N = 41, c.layout = Layout::line(12);
      c.D = kSizes[index], c.E = kSizes[(index + away) % kCount];
      c.eps = c.D < 8 ? 0.1 : 1e-6;
      cases.push_back(c);
    }
  }
}

void add_heads(std::vector<Case>& cases, Form form) {
  for (const auto& [H, Hkv] : {std::pair{4, 2}, {3, 1}, {6, 6}}) {
    for (const bool per_head : {false, true}) {
      Case c = base(form);
      c.N = 37, c.H = H, c.Hkv = Hkv, c.D = 16, c.E = 24, c.per_head = per_head;
      cases.push_back(c);
    }
  }
}

void add_memory(std::vector<Case>& cases, Form form) {
  Case c = base(form);
  c.B = 3, c.N = 35, c.H = 4, c.Hkv = 2, c.D = 16, c.E = 8, c.eps = 0.1;
  c.fused = true;
  cases.push_back(c);
  c.fused = false, c.broadcast = true;
  cases.push_back(c);
}

void add_packed(std::vector<Case>& cases, Form form) {
  for (const std::vector<std::int64_t>& cu :
       {std::vector<std::int64_t>{0, 0, 3, 19, 19, 52}, {0, 16, 33}, {0, 0}, {0, 1, 2, 40, 40, 40}}) {
    Case c = base(form);
    c.B = 1, c.N = cu.back(), c.cu_seqlens = cu, c.D = 16, c.E = 16, c.eps = 0.1;
    cases.push_back(c);
    c.rows = 5, c.per_head = true, c.fused = true;
    cases.push_back(c);
  }
}

void add_grids(std::vector<Case>& cases) {
  for (const Layout& layout : {Layout::grid2d(8, 8, 2, 2), Layout::grid2d(5, 7, 2, 3), Layout::grid2d(1, 9, 1, 3),
                               Layout::grid2d(6, 4, 6, 4), Layout::grid3d({3, 5, 7}, {2, 2, 3}),
                               Layout::grid3d({4, 4, 6}, {2, 1, 3}), Layout::grid3d({1, 1, 5}, {1, 1, 2})}) {
    for (const Normalizer normalizer : {Normalizer::kPaper, Normalizer::kNone, Normalizer::kOfficial}) {
      Case c = base(Form::kBidirectional);
      c.layout = layout, c.N = layout.grid[0] * layout.grid[1] * layout.grid[2];
      c.D = 16, c.E = 16, c.eps = 0.1, c.normalizer = normalizer;
      if (normalizer == Normalizer::kOfficial && !BlockMap(layout, c.N).equal_blocks()) continue;
      cases.push_back(c);
      c.B = 0;
      cases.push_back(c);
    }
  }
}

void add_extend(std::vector<Case>& cases) {
  for (const std::int64_t rows : {1, 2, 3, 6}) {
    for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
      Case c = base(Form::kCausal);
      c.N = 53, c.layout = Layout::line(8), c.rows = rows, c.extend = true, c.normalizer = normalizer, c.eps = 0.1;
      cases.push_back(c);
    }
  }
}

// N follows from a grid.
Case on_grid(const Layout& layout, std::int64_t size) {
  Case c = base(Form::kBidirectional);
  c.layout = layout, c.N = layout.grid[0] * layout.grid[1] * layout.grid[2], c.D = c.E = size, c.eps = 0.1;
  return c;
}

Case on_line(Form form, std::int64_t N, std::int64_t block, std::int64_t D, std::int64_t E) {
  Case c = base(form);
  c.N = N, c.layout = Layout::line(block), c.D = D, c.E = E, c.eps = 0.1;
  return c;
}

void add_model_grids(std::vector<Case>& cases) {
  const Layout image = Layout::grid2d(16, 16, 4, 4);
  for (const std::int64_t size : {16, 32, 64, 72, 128}) cases.push_back(on_grid(image, size));
  cases.push_back(on_grid(Layout::grid2d(13, 17, 4, 5), 40));  // ragged at both edges
  cases.push_back(on_grid(Layout::grid3d({5, 6, 10}, {5, 2, 2}), 128));
  cases.push_back(on_grid(Layout::grid3d({3, 7, 9}, {2, 3, 2}), 64));
  cases.push_back(on_grid(Layout::grid2d(8, 8, 8, 8), 64));  // one token per block
  for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kOfficial}) {
    cases.push_back(on_grid(image, 64));
    cases.back().normalizer = normalizer;
  }
  for (const FeatureMap map : {FeatureMap::kRelu, FeatureMap::kElu1, FeatureMap::kIdentity}) {
    cases.push_back(on_grid(image, 64));
    cases.back().feature_map = map;
  }
  cases.push_back(on_grid(image, 64));
  cases.back().fused = true;
  cases.push_back(on_grid(image, 64));
  cases.back().broadcast = true;
  cases.push_back(on_grid(image, 32));
  cases.back().den = true;
  cases.push_back(on_grid(image, 64));
  cases.back().H = 4, cases.back().per_head = true;
}

// `extend` on the ways of the fast kernels: chunks of one tile of 64 tokens and of more, parts of the columns, tiles of
// 16 chunks, more rows than the panels of the Hopper kernels begin with, shared keys, a matrix per head.
void add_longer_than_mix(std::vector<Case>& cases) {
  const auto add = [&](std::int64_t N, std::int64_t chunk, std::int64_t D, std::int64_t E, std::int64_t rows) -> Case& {
    cases.push_back(on_line(Form::kCausal, N, chunk, D, E));
    cases.back().rows = rows, cases.back().extend = true;
    return cases.back();
  };
  add(330, 64, 64, 64, 3);
  add(330, 64, 64, 64, 1);
  add(600, 128, 64, 64, 2).normalizer = Normalizer::kPaper;
  add(280, 64, 128, 256, 2).H = 2;
  add(700, 16, 32, 32, 20).B = 1;
  Case& many = add(1300, 8, 16, 16, 70);  // 163 chunks
  many.B = 1, many.H = 2;
  Case& heads = add(200, 32, 64, 32, 4);
  heads.H = 4, heads.per_head = true, heads.normalizer = Normalizer::kPaper;
  Case& shared = add(200, 32, 64, 64, 3);
  shared.H = 4, shared.Hkv = 2;
  add(150, 64, 64, 64, 8);  // fewer chunks than rows: the way of mixing is that of more
}

// Packed sequences on the ways of the fast kernels: of like and of very different lengths, chunks of one tile of 64
// tokens and of more, parts of the columns, shared keys, a matrix per head, more chunks than rows.
void add_packed_lines(std::vector<Case>& cases) {
  const auto add = [&](std::vector<std::int64_t> cu, std::int64_t chunk, std::int64_t D, std::int64_t E) -> Case& {
    cases.push_back(on_line(Form::kCausal, cu.back(), chunk, D, E));
    cases.back().B = 1, cases.back().cu_seqlens = std::move(cu);
    return cases.back();
  };
  add({0, 1, 65, 320, 320, 450}, 64, 128, 256);
  add({0, 300, 301, 429, 600}, 128, 64, 64).normalizer = Normalizer::kPaper;
  add({0, 140, 400, 410}, 128, 128, 128).rows = 9;
  add({0, 16, 33, 40, 280, 296}, 16, 32, 32).normalizer = Normalizer::kPaper;
  Case& heads = add({0, 70, 71, 200}, 32, 64, 32);
  heads.H = 4, heads.per_head = true;
  Case& shared = add({0, 100, 228, 230}, 64, 64, 64);
  shared.H = 4, shared.Hkv = 2, shared.normalizer = Normalizer::kPaper;
  Case& longer = add({0, 40, 41, 250, 253}, 16, 64, 64);
  longer.rows = 4, longer.extend = true;
}

// More sequences than one launch of the Hopper kernels tells the card about.
void add_many_sequences(std::vector<Case>& cases) {
  Case c = base(Form::kCausal);
  c.B = 1, c.D = 16, c.E = 16, c.layout = Layout::line(4), c.cu_seqlens = {0};
  for (std::int64_t s = 0; s < 240; ++s) c.cu_seqlens.push_back(c.cu_seqlens.back() + s * 7 % 11);
  c.N = c.cu_seqlens.back();
  cases.push_back(c);
}

// Chunks of 64 tokens with keys of 128 and up to 32 rows of mix, which the Hopper kernels walk over in slices of 32
// columns: every part of mixing (8, 16, 24 and 32 chunks), one chunk and one token, maps, shared keys, a matrix per
// head.
void add_slices(std::vector<Case>& cases) {
  const auto add = [&](std::int64_t N, std::int64_t E, std::int64_t H, std::int64_t Hkv) -> Case& {
    cases.push_back(on_line(Form::kCausal, N, 64, 128, E));
    cases.back().B = 1, cases.back().H = H, cases.back().Hkv = Hkv;
    return cases.back();
  };
  add(2048, 256, 1, 1).feature_map = FeatureMap::kIdentity;
  add(1984 + 17, 128, 2, 1);
  Case& token = add(1, 256, 8, 8);  // dq and dk of one token have the error of one product: enough of them for a mean
  token.B = 16, token.rows = 32;
  add(64, 128, 2, 2).rows = 5;
  add(1100, 32, 1, 1).feature_map = FeatureMap::kElu1;
  Case& heads = add(130, 96, 3, 3);
  heads.per_head = true, heads.fused = true, heads.B = 20;  // more items than multiprocessors
  Case& broadcast = add(200, 64, 2, 1);
  broadcast.B = 2, broadcast.broadcast = true, broadcast.feature_map = FeatureMap::kRelu;
  Case& odd = add(190, 250, 1, 1);  // copied
  odd.D = 125, odd.scale = 0.3;
  Case& packed = add(1500, 64, 2, 2);
  packed.cu_seqlens = {0, 1090, 1091, 1219, 1219, 1300, 1500}, packed.rows = 32;
}

void add_model_lines(std::vector<Case>& cases, Form form) {
  cases.push_back(on_line(form, 300, 64, 128, 256));
  cases.push_back(on_line(form, 257, 128, 64, 64));
  cases.push_back(on_line(form, 272, 16, 64, 128));
  cases.push_back(on_line(form, 100, 256, 64, 64));  // one block
  cases.push_back(on_line(form, 200, 64, 64, 32));
  cases.back().H = 4, cases.back().per_head = true;
  cases.push_back(on_line(form, 260, 64, 64, 64));
  cases.back().B = 1, cases.back().cu_seqlens = {0, 100, 100, 101, 229, 260};
  cases.push_back(on_line(form, 200, 64, 64, 64));
  cases.back().fused = true;
  cases.push_back(on_line(form, 150, 64, 32, 64));
  cases.back().normalizer = Normalizer::kPaper, cases.back().den = true;
  if (form == Form::kBidirectional) return;
  cases.push_back(on_line(form, 300, 64, 64, 64));
  cases.back().normalizer = Normalizer::kPaper;
  add_longer_than_mix(cases);
  add_packed_lines(cases);
  add_slices(cases);
}

// Up to 256 tokens, which the Hopper kernels take pair by pair: one, two, three and four squares of 64 tokens, tiles
// that are not full, heads that share keys.
void add_short_lines(std::vector<Case>& cases) {
  cases.push_back(on_line(Form::kBidirectional, 49, 7, 40, 64));
  cases.push_back(on_line(Form::kBidirectional, 128, 32, 64, 40));
  cases.back().H = 4, cases.back().Hkv = 2;
  cases.push_back(on_line(Form::kBidirectional, 190, 48, 48, 56));
  cases.back().feature_map = FeatureMap::kElu1, cases.back().normalizer = Normalizer::kNone;
  cases.push_back(on_line(Form::kBidirectional, 250, 16, 64, 64));
  cases.back().H = 3, cases.back().Hkv = 1, cases.back().feature_map = FeatureMap::kIdentity;
  cases.push_back(on_line(Form::kBidirectional, 256, 16, 64, 64));
  cases.back().H = 2, cases.back().Hkv = 2, cases.back().per_head = true;
}

// q_den and k_den on the ways of the fast kernels: blocks of up to 64 tokens and of more, every size of tiles, heads
// that share keys, a matrix per head, short sequences too.
void add_den_grids(std::vector<Case>& cases) {
  const auto add = [&](const Layout& layout, std::int64_t D, std::int64_t E, FeatureMap map) -> Case& {
    cases.push_back(on_grid(layout, D));
    cases.back().E = E, cases.back().feature_map = map, cases.back().den = true;
    return cases.back();
  };
  const Layout image = Layout::grid2d(16, 16, 4, 4), video = Layout::grid3d({5, 6, 10}, {2, 2, 1});
  add(image, 64, 64, FeatureMap::kIdentity);
  add(image, 128, 72, FeatureMap::kReluEps);
  add(Layout::grid2d(13, 17, 4, 5), 40, 72, FeatureMap::kElu1);
  add(video, 128, 128, FeatureMap::kIdentity).B = 1;  // up to 90 tokens a block
  add(video, 64, 64, FeatureMap::kIdentity).H = 4;
  add(video, 104, 96, FeatureMap::kRelu).B = 1;
  add(video, 72, 24, FeatureMap::kReluEps);
  Case& shared = add(video, 64, 48, FeatureMap::kReluEps);
  shared.H = 4, shared.Hkv = 2, shared.scale = 0.7;
  Case& heads = add(image, 32, 32, FeatureMap::kIdentity);
  heads.H = 4, heads.Hkv = 4, heads.per_head = true, heads.fused = true;
}

// Blocks of more than 512 tokens, which the Hopper kernels cut into parts, and more tokens than one of them takes at
// once: one block, ragged ones, a matrix per head, rows of mix that no block uses.
void add_large_blocks(std::vector<Case>& cases) {
  // Matrices per head: an error of dmix over one or two entries would be a matter of luck.
  const auto add = [&](const Case& c, std::int64_t heads) -> Case& {
    cases.push_back(c);
    cases.back().H = cases.back().Hkv = heads, cases.back().per_head = true;
    return cases.back();
  };
  add(on_line(Form::kBidirectional, 1030, 1030, 64, 64), 8).normalizer = Normalizer::kNone;
  add(on_line(Form::kBidirectional, 1100, 550, 64, 64), 4);
  add(on_line(Form::kBidirectional, 1300, 600, 32, 24), 4).rows = 4;
  Case& ragged = add(on_grid(Layout::grid2d(45, 50, 2, 1), 64), 8);
  ragged.B = 1, ragged.normalizer = Normalizer::kNone;
  Case& den = add(on_grid(Layout::grid3d({4, 24, 22}, {1, 2, 1}), 32), 4);
  den.B = 1, den.den = true;
  cases.push_back(on_grid(Layout::grid2d(48, 48, 4, 4), 64));  // not cut, but not one kernel either
  cases.back().B = 1;
}

// Head sizes whose rows are no multiples of 16 bytes: the Hopper kernels copy them.
void add_odd_sizes(std::vector<Case>& cases, Form form) {
  cases.push_back(on_line(form, 200, 64, 50, 100));
  cases.push_back(on_line(form, 300, 128, 60, 63));
  cases.back().normalizer = Normalizer::kPaper, cases.back().H = 4;
  cases.push_back(on_line(form, 150, 32, 121, 33));
  cases.back().feature_map = FeatureMap::kElu1, cases.back().fused = true;
  if (form == Form::kCausal) cases.push_back(on_line(form, 150, 64, 120, 136));  // no two parts of whole 16 bytes
  cases.push_back(on_line(form, 90, 16, 36, 36));
  cases.back().feature_map = FeatureMap::kRelu, cases.back().normalizer = Normalizer::kPaper;
  if (form == Form::kBidirectional) cases.back().den = true;
}

// Long blocks with head sizes that leave columns of the Hopper kernels' panels empty, and a map that is not 0 there.
void add_empty_columns(std::vector<Case>& cases, Form form) {
  for (const auto& [D, E] : {std::pair<std::int64_t, std::int64_t>{40, 56}, {104, 96}}) {
    Case c = on_line(form, 300, 128, D, E);
    c.feature_map = FeatureMap::kElu1, c.normalizer = Normalizer::kPaper;
    c.H = c.Hkv = 4, c.per_head = true;  // enough entries of dmix for a mean
    cases.push_back(c);
    c.normalizer = Normalizer::kNone;
    if (form == Form::kCausal) cases.push_back(c);  // of all blocks, sums without a normaliser do not fit into f16
  }
}

// More blocks than mixing has rows for at a time, of cards with little shared memory and with more.
void add_many_blocks(std::vector<Case>& cases, Form form) {
  cases.push_back(on_line(form, 1600, 4, 16, 16));
  cases.back().B = 1, cases.back().H = cases.back().Hkv = 1;
}

// Long chunks, several of them: rounding errors grow with the chains of multiply-adds over their tokens.
void add_long_chunks(std::vector<Case>& cases) {
  for (const auto& [N, chunk] : {std::pair{520, 128}, {1030, 256}}) {
    Case c = base(Form::kCausal);
    c.B = 1, c.N = N, c.layout = Layout::line(chunk), c.D = 16, c.E = 16, c.eps = 0.1;
    c.feature_map = FeatureMap::kElu1;
    cases.push_back(c);
    c.feature_map = FeatureMap::kReluEps, c.normalizer = Normalizer::kPaper;
    cases.push_back(c);
  }
}

}  // namespace

std::vector<Case> fast_path_shapes(Form form) {
  std::vector<Case> cases;
  if (form == Form::kBidirectional) add_model_grids(cases), add_short_lines(cases);
  add_model_lines(cases, form);
  if (form == Form::kBidirectional) add_den_grids(cases), add_large_blocks(cases);
  add_odd_sizes(cases, form);
  add_empty_columns(cases, form);
  add_many_blocks(cases, form);
  return selected(std::move(cases));
}

std::vector<Case> forgotten_shapes(Form form) {
  std::vector<Case> cases;
  add_lengths(cases, form);
  add_head_sizes(cases, form);
  add_heads(cases, form);
  add_memory(cases, form);
  add_packed(cases, form);
  if (form == Form::kBidirectional) add_grids(cases);
  if (form == Form::kCausal) add_extend(cases), add_long_chunks(cases), add_many_sequences(cases);
  return selected(std::move(cases));
}

std::vector<Case> option_combinations(Form form) {
  std::vector<Case> shapes;
  Case c = base(form);
  c.H = 4, c.D = 9, c.E = 5, c.eps = 0.1;
  c.N = 12, c.layout = Layout::line(4);
  shapes.push_back(c);
  if (form == Form::kBidirectional) {
    c.N = 15, c.layout = Layout::grid2d(3, 5, 2, 2);
    shapes.push_back(c);
    c.N = 24, c.layout = Layout::grid3d({2, 3, 4}, {2, 1, 2});
    shapes.push_back(c);
  } else {
    c.N = 23, c.rows = 3, c.extend = true;
    shapes.push_back(c);
  }
  c = shapes.front();
  c.B = 1, c.N = 14, c.cu_seqlens = {0, 5, 5, 14};
  shapes.push_back(c);

  std::vector<Case> cases;
  for (const Case& shape : shapes) {
    for (const FeatureMap map : {FeatureMap::kReluEps, FeatureMap::kRelu, FeatureMap::kElu1, FeatureMap::kIdentity}) {
      for (const Normalizer normalizer : {Normalizer::kPaper, Normalizer::kNone, Normalizer::kOfficial}) {
        for (int bits = 0; bits < 4; ++bits) {
          Case option = shape;
          option.feature_map = map, option.normalizer = normalizer;
          option.den = (bits & 1) != 0, option.per_head = (bits & 2) != 0;
          option.Hkv = option.per_head ? 2 : 4;
          if (option.den) option.scale = 0.7;
          if (option.den && normalizer == Normalizer::kNone) continue;
          if (normalizer == Normalizer::kOfficial && form == Form::kCausal) continue;
          if (normalizer == Normalizer::kOfficial && option.layout.rank == 1 && !option.cu_seqlens.empty())
            option.N = 12, option.cu_seqlens = {0, 4, 4, 12};
          if (normalizer == Normalizer::kOfficial && option.layout.rank == 2)
            option.N = 24, option.layout = Layout::grid2d(4, 6, 2, 3);
          cases.push_back(option);
        }
      }
    }
  }
  return selected(std::move(cases));
}

}  // namespace mhla
