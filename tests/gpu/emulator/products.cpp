#include "tests/gpu/emulator/products.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "tests/gpu/emulator/copies.h"
#include "tests/gpu/emulator/fibers.h"
#include "tests/gpu/emulator/shared.h"

namespace emulator {

namespace {

float value_of(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

struct Matrices {
  std::uint32_t* r;
  std::uint32_t row;
  int count;
  bool transposed;
};

template <bool kStore>
void move_matrices(void* const (&lanes)[32]) {
  const int count = static_cast<const Matrices*>(lanes[0])->count;
  std::uint16_t all[4][8][8];
  const auto place = [&](int m, int row) {
    return place_of(static_cast<const Matrices*>(lanes[m * 8 + row])->row, 16, 16, kStore ? "stmatrix" : "ldmatrix");
  };
  for (int m = 0; m < count && !kStore; ++m) {
    for (int row = 0; row < 8; ++row) std::memcpy(all[m][row], place(m, row), 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const Matrices*>(lanes[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int m = 0; m < count; ++m) {
      std::uint16_t& low = own.transposed ? all[m][2 * q][g] : all[m][g][2 * q];
      std::uint16_t& high = own.transposed ? all[m][2 * q + 1][g] : all[m][g][2 * q + 1];
      if constexpr (kStore) {
        low = static_cast<std::uint16_t>(own.r[m]), high = static_cast<std::uint16_t>(own.r[m] >> 16);
      } else {
        own.r[m] = std::uint32_t{low} | std::uint32_t{high} << 16;
      }
    }
  }
  for (int m = 0; m < count && kStore; ++m) {
    for (int row = 0; row < 8; ++row) std::memcpy(place(m, row), all[m][row], 16);
  }
}

struct WarpProduct {
  float* c;
  const std::uint32_t *a, *b;
  int words;
};

void multiply_lanes(void* const (&lanes)[32]) {
  float a[16][16], b[16][8], c[16][8] = {};
  const int words = static_cast<const WarpProduct*>(lanes[0])->words, depth = words * 4;
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const WarpProduct*>(lanes[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int w = 0; w < words; ++w) {
      for (int next = 0; next < 2; ++next) {
        a[g + w % 2 * 8][w / 2 * 8 + 2 * q + next] = value_of(static_cast<std::uint16_t>(own.a[w] >> 16 * next));
        if (w % 2 == 0)
          b[w / 2 * 8 + 2 * q + next][g] = value_of(static_cast<std::uint16_t>(own.b[w / 2] >> 16 * next));
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < depth; ++k) {
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* const own = static_cast<const WarpProduct*>(lanes[lane])->c;
    for (int e = 0; e < 4; ++e) own[e] += c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
  }
}

// ---- warpgroups ----

constexpr int kMostColumns = 256;

// Sums of a thread on their way: `values` are what they will be, in their own place is NaN.
struct Sums {
  float* place;
  std::vector<float> values;
  std::int64_t last;  // product that adds to them
};

struct Issued {
  int columns;
  bool a_in_registers, a_transposed, b_transposed, add;
  std::uint32_t a_words[4];
  std::uint64_t a_matrix, b_matrix;
  float* place;
};

struct GroupThread {
  std::deque<Issued> queue;  // from product `first` on
  std::int64_t first = 0, issued = 0;
  std::vector<std::int64_t> groups;  // products issued when each was committed
  std::vector<Sums> sums;
};

GroupThread group_threads[kMostThreads];

struct Group {
  std::int64_t executed = 0, issued_by_all = 0;
  int others = 0;  // threads that have issued more
};
Group groups[kMostThreads / kGroupLanes];

Sums& sums_at(GroupThread& thread, float* place) {
  for (Sums& sums : thread.sums) {
    if (sums.place == place) return sums;
  }
  wrong("wgmma: sums are lost");
}

// f(row, k, value) for the first `rows` rows and 16 products of a matrix that a descriptor describes; transposed: rows
// in memory are those of k.
template <class F>
void read_matrix(std::uint64_t descriptor, bool transposed, int rows, const F& f) {
  const auto field = [&](int bit) { return static_cast<std::uint32_t>(descriptor >> bit & 0x3fff) << 4; };
  const std::uint32_t start = field(0), leading = field(16), stride = field(32);
  const auto swizzle = static_cast<int>(descriptor >> 62);
  if (swizzle == 0) wrong("wgmma: a matrix without swizzle: the emulator has no such");
  const int row_bytes = 256 >> swizzle, width = row_bytes / 2;  // 128, 64, 32
  const int length = transposed ? rows : 16, lines = transposed ? 16 : rows;
  for (int line = 0; line < lines; ++line) {
    for (int first = 0; first < length; first += 8) {
      const std::uint32_t at = start + static_cast<std::uint32_t>(line / 8) * stride +
                               static_cast<std::uint32_t>(line % 8 * row_bytes + first % width * 2) +
                               static_cast<std::uint32_t>(first / width) * leading;
      std::uint16_t piece[8];
      std::memcpy(piece, place_of(swizzled(at, row_bytes), 16, 16, "wgmma"), 16);
      for (int i = 0; i < 8; ++i)
        transposed ? f(first + i, line, value_of(piece[i])) : f(line, first + i, value_of(piece[i]));
    }
  }
}

void execute(int group) {
  GroupThread* const threads = group_threads + group * kGroupLanes;
  const std::int64_t index = groups[group].executed;
  const auto of = [&](int t) -> Issued& {
    return threads[t].queue[static_cast<std::size_t>(index - threads[t].first)];
  };
  const Issued& common = of(0);
  static float a[64][16], b[16][kMostColumns], c[64][kMostColumns];
  for (int t = 0; t < kGroupLanes; ++t) {
    const Issued& own = of(t);
    if (own.columns != common.columns || own.b_matrix != common.b_matrix || own.a_matrix != common.a_matrix ||
        own.a_in_registers != common.a_in_registers || own.a_transposed != common.a_transposed ||
        own.b_transposed != common.b_transposed || own.add != common.add)
      wrong("wgmma %lld of warpgroup %d: threads %d and %d differ", static_cast<long long>(index), group,
            group * kGroupLanes, group * kGroupLanes + t);
    const int row = t / 32 * 16 + t % 32 / 4, q = t % 4;
    for (int w = 0; w < 4 && own.a_in_registers; ++w) {
      for (int next = 0; next < 2; ++next)
        a[row + w % 2 * 8][w / 2 * 8 + 2 * q + next] =
            value_of(static_cast<std::uint16_t>(own.a_words[w] >> 16 * next));
    }
  }
  if (!common.a_in_registers)
    read_matrix(common.a_matrix, common.a_transposed, 64, [](int row, int k, float x) { a[row][k] = x; });
  const int columns = common.columns;
  read_matrix(common.b_matrix, common.b_transposed, columns, [](int row, int k, float x) { b[k][row] = x; });
  for (int row = 0; row < 64; ++row) {
    std::memset(c[row], 0, sizeof(c[row]));
    for (int k = 0; k < 16; ++k) {
      const float x = a[row][k];
      for (int column = 0; column < columns; ++column) c[row][column] += x * b[k][column];
    }
  }
  for (int t = 0; t < kGroupLanes; ++t) {
    std::vector<float>& values = sums_at(threads[t], of(t).place).values;
    for (int e = 0; e < columns / 2; ++e) {
      const float sum = c[t / 32 * 16 + t % 32 / 4 + e % 4 / 2 * 8][e / 4 * 8 + t % 4 * 2 + e % 2];
      values[static_cast<std::size_t>(e)] = common.add ? values[static_cast<std::size_t>(e)] + sum : sum;
    }
  }
  for (int t = 0; t < kGroupLanes; ++t) threads[t].queue.pop_front(), ++threads[t].first;
  ++groups[group].executed;
}

// A thread has issued one more.
void count_issued(int group, std::int64_t issued) {
  if (issued != groups[group].issued_by_all + 1 || ++groups[group].others < kGroupLanes) return;
  const std::int64_t all = ++groups[group].issued_by_all;
  groups[group].others = 0;
  for (int t = group * kGroupLanes; t < (group + 1) * kGroupLanes; ++t)
    groups[group].others += group_threads[t].issued > all;
  while (!late_sums && groups[group].executed < all) execute(group);
  wake(Wait::kProducts, static_cast<std::uint32_t>(group));
}

}  // namespace

void load_matrices(std::uint32_t* r, std::uint32_t row, int matrices, bool transposed) {
  Matrices mine{r, row, matrices, transposed};
  warp_meet("ldmatrix", &mine, move_matrices<false>);
}
void store_matrices(const std::uint32_t* r, std::uint32_t row, int matrices) {
  Matrices mine{const_cast<std::uint32_t*>(r), row, matrices, false};
  warp_meet("stmatrix", &mine, move_matrices<true>);
}
void multiply_warp(float* c, const std::uint32_t* a, const std::uint32_t* b, int words) {
  WarpProduct mine{c, a, b, words};
  warp_meet("mma", &mine, multiply_lanes);
}

void begin_products() {
  for (int t = 0; t < threads_of_cluster(); ++t) {
    GroupThread& thread = group_threads[t];
    thread.queue.clear(), thread.groups.clear(), thread.sums.clear();
    thread.first = thread.issued = 0;
    groups[t / kGroupLanes] = {};
  }
}

void issue_product(const GroupProduct& p) {
  const int t = this_thread(), group = t / kGroupLanes;
  GroupThread& own = group_threads[t];
  const auto count = static_cast<std::size_t>(p.columns / 2);
  Issued issued{p.columns, p.a_words != nullptr, p.a_transposed, p.b_transposed, p.add, {}, p.a_matrix, p.b_matrix,
                p.c};
  if (p.a_words != nullptr) std::memcpy(issued.a_words, p.a_words, sizeof(issued.a_words));
  bool known = false;
  for (Sums& sums : own.sums) {
    if (sums.place == p.c) known = true, sums.last = own.issued;
  }
  if (!known) {
    own.sums.push_back({p.c, std::vector<float>(p.c, p.c + count), own.issued});
    std::fill(p.c, p.c + count, std::numeric_limits<float>::quiet_NaN());
  }
  own.queue.push_back(issued);
  ++own.issued;
  count_issued(group, own.issued);
}

void commit_products() {
  GroupThread& own = group_threads[this_thread()];
  own.groups.push_back(own.issued);
}

void wait_products(int pending) {
  const int t = this_thread(), group = t / kGroupLanes;
  GroupThread& own = group_threads[t];
  const auto committed = static_cast<std::int64_t>(own.groups.size());
  if (committed <= pending) return;
  const std::int64_t target = own.groups[static_cast<std::size_t>(committed - pending - 1)];
  while (groups[group].issued_by_all < target) wait_for(Wait::kProducts, static_cast<std::uint32_t>(group), 0);
  while (groups[group].executed < target) execute(group);
  for (auto sums = own.sums.begin(); sums != own.sums.end();) {
    if (sums->last >= target) {
      ++sums;
      continue;
    }
    std::memcpy(sums->place, sums->values.data(), sums->values.size() * sizeof(float));
    sums = own.sums.erase(sums);
  }
}

}  // namespace emulator
