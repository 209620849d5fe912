#include "tests/gpu/emulator/copies.h"

#include <cstring>
#include <deque>

#include "tests/gpu/emulator/fibers.h"
#include "tests/gpu/emulator/mbarriers.h"
#include "tests/gpu/emulator/shared.h"

namespace emulator {

namespace {

struct Copy {
  enum Kind { kBytes, kCommit, kArrive } kind;
  std::uint32_t to;  // for all of the cluster, as all addresses here
  const char* from;  // null: zeros
  std::size_t bytes;
  std::uint32_t barrier;
};

struct Box {
  TensorMap map;
  std::uint32_t shared, barrier;
  int at[5];
  int thread, group;
};

std::deque<Copy> copies[kMostThreads];
std::deque<Box> loads, stores;

struct Sent {
  std::uint32_t to, barrier;
  std::size_t bytes;
  char data[16];
};
std::deque<Sent> sent;
int groups[kMostThreads];  // of boxes, committed

void arrive(const Copy& copy) {
  if (copy.kind == Copy::kArrive) return mbarrier_arrive(copy.barrier);
  if (copy.kind == Copy::kCommit) return;
  char* const to = place_of(copy.to, copy.bytes, copy.bytes, "cp.async");
  copy.from != nullptr ? std::memcpy(to, copy.from, copy.bytes) : std::memset(to, 0, copy.bytes);
}

void arrive_first(std::deque<Copy>& queue, std::size_t count) {
  for (; count > 0; --count) {
    const Copy copy = queue.front();
    queue.pop_front();
    arrive(copy);
  }
}

void ask(const Copy& copy) {
  if (!late_copies) return arrive(copy);
  if (copy.kind == Copy::kBytes) std::memset(place_of(copy.to, copy.bytes, copy.bytes, "cp.async"), 0xff, copy.bytes);
  copies[this_thread()].push_back(copy);
}

// f(place in the box in bytes, element or null where the tensor has none) for the rows of a box.
template <class F>
void each_row(const Box& box, const F& f) {
  const TensorMap& map = box.map;
  const auto row_bytes = static_cast<std::uint32_t>(map.box[0] * map.stride[0]);
  std::uint32_t place = 0;
  for (int d = 0; d < map.box[4] * map.box[3]; ++d) {
    for (int c = 0; c < map.box[2]; ++c) {
      for (int b = 0; b < map.box[1]; ++b, place += row_bytes) {
        const std::int64_t at[5] = {box.at[0], box.at[1] + b, box.at[2] + c, box.at[3] + d % map.box[3],
                                    box.at[4] + d / map.box[3]};
        bool there = true;
        for (int axis = 1; axis < 5; ++axis) there = there && at[axis] >= 0 && at[axis] < map.size[axis];
        char* row = map.data;
        for (int axis = 1; axis < 5; ++axis) row += at[axis] * map.stride[axis];
        for (std::uint32_t byte = 0; byte < row_bytes; byte += 16) {
          const std::int64_t element = at[0] + byte / map.stride[0];
          const std::int64_t left = (map.size[0] - element) * map.stride[0];
          const std::int64_t bytes = !there || element < 0 || left <= 0 ? 0 : left < 16 ? left : 16;
          f(swizzled(box.shared + place + byte, map.swizzle), row + element * map.stride[0],
            static_cast<std::size_t>(bytes));
        }
      }
    }
  }
}

std::size_t bytes_of(const TensorMap& map) {
  return static_cast<std::size_t>(map.box[0] * map.stride[0]) * static_cast<std::size_t>(map.box[1]) *
         static_cast<std::size_t>(map.box[2]) * static_cast<std::size_t>(map.box[3]) *
         static_cast<std::size_t>(map.box[4]);
}

void load(const Box& box) {
  each_row(box, [](std::uint32_t shared, const char* memory, std::size_t bytes) {
    char* const to = place_of(shared, 16, 16, "box");
    std::memset(to, 0, 16);
    if (bytes > 0) std::memcpy(to, memory, bytes);
  });
  mbarrier_bytes(box.barrier, static_cast<std::int64_t>(bytes_of(box.map)));
}

void ask(const Box& box) {
  if (!late_copies) return load(box);
  std::memset(place_of(box.shared, bytes_of(box.map), 16, "box"), 0xff, bytes_of(box.map));
  loads.push_back(box);
}

TensorMap bytes_map(void* data, int bytes) {
  return {static_cast<char*>(data), {bytes / 2, 1, 1, 1, 1}, {2, 0, 0, 0, 0}, {bytes / 2, 1, 1, 1, 1}, 0};
}

void store(const Box& box) {
  each_row(box, [](std::uint32_t shared, char* memory, std::size_t bytes) {
    if (bytes > 0) std::memcpy(memory, place_of(shared, 16, 16, "box"), bytes);
  });
}

void store_those_of(int thread, int pending) {  // -1: all
  for (auto box = stores.begin(); box != stores.end();) {
    if (thread >= 0 && (box->thread != thread || box->group >= groups[thread] - pending)) {
      ++box;
      continue;
    }
    put_in_place(block_of(box->shared));
    store(*box);
    box = stores.erase(box);
  }
}

}  // namespace

void copy_async(std::uint32_t to, const void* global, std::size_t bytes, bool valid) {
  if (reinterpret_cast<std::uintptr_t>(global) % bytes != 0) wrong("cp.async: %zu bytes from %p", bytes, global);
  place_of(to, bytes, bytes, "cp.async");
  ask({Copy::kBytes, cluster_address(to), valid ? static_cast<const char*>(global) : nullptr, bytes, 0});
}
void copy_commit() { ask({Copy::kCommit, 0, nullptr, 0, 0}); }
void copy_arrive(std::uint32_t barrier) { ask({Copy::kArrive, 0, nullptr, 0, cluster_address(barrier)}); }

void copy_wait(int pending) {
  std::deque<Copy>& queue = copies[this_thread()];
  std::size_t count = queue.size();
  for (int groups = 0; count > 0; --count) {
    if (queue[count - 1].kind == Copy::kCommit && groups++ == pending) break;
  }
  arrive_first(queue, count);
}

void load_box(std::uint32_t to, const TensorMap& map, std::uint32_t barrier, const int (&at)[5]) {
  place_of(to, bytes_of(map), 128, "box");
  ask({map, cluster_address(to), cluster_address(barrier), {at[0], at[1], at[2], at[3], at[4]}, this_thread(), 0});
}
void load_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  check_bytes("bulk copy", from, bytes);
  ask({bytes_map(const_cast<void*>(from), bytes), cluster_address(to), cluster_address(barrier), {}, this_thread(), 0});
}

void store_box(const TensorMap& map, std::uint32_t from, const int (&at)[5]) {
  const Box box{map,           cluster_address(from), 0, {at[0], at[1], at[2], at[3], at[4]},
                this_thread(), groups[this_thread()]};
  place_of(from, bytes_of(map), 128, "box");
  late_copies ? stores.push_back(box) : store(box);
}
void store_bytes(void* to, std::uint32_t from, int bytes) {
  check_bytes("bulk copy", to, bytes);
  place_of(from, static_cast<std::size_t>(bytes), 16, "bulk copy");
  const Box box{bytes_map(to, bytes), cluster_address(from), 0, {}, this_thread(), groups[this_thread()]};
  late_copies ? stores.push_back(box) : store(box);
}
void check_bytes(const char* what, const void* global, int bytes) {
  if (bytes < 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0)
    wrong("%s: %d bytes at %p", what, bytes, global);
}
void commit_boxes() { ++groups[this_thread()]; }
void wait_boxes(int pending) { store_those_of(this_thread(), pending); }

void send(std::uint32_t to, const void* data, std::size_t bytes, std::uint32_t barrier) {
  if (block_of(to) != block_of(barrier))
    wrong("st.async: to block %d, its barrier is in %d", block_of(to), block_of(barrier));
  char* const place = place_of(to, bytes, bytes, "st.async");
  Sent one{cluster_address(to), cluster_address(barrier), bytes, {}};
  std::memcpy(one.data, data, bytes);
  late_copies ? std::memset(place, 0xff, bytes) : std::memcpy(place, data, bytes);
  if (late_copies) return sent.push_back(one);
  mbarrier_bytes(one.barrier, static_cast<std::int64_t>(bytes));
}

void begin_copies() {
  for (int t = 0; t < threads_of_cluster(); ++t) copies[t].clear(), groups[t] = 0;
  loads.clear(), stores.clear(), sent.clear();
}

void end_copies() {
  if (!sent.empty()) wrong("st.async: %zu that nobody has waited for", sent.size());
  store_those_of(-1, 0);
}

bool deliver_copies() {
  bool any = false;
  for (int t = 0; t < threads_of_cluster(); ++t) {
    std::deque<Copy>& queue = copies[t];
    for (std::size_t i = 0; i < queue.size(); ++i) {
      if (queue[i].kind != Copy::kArrive) continue;
      arrive_first(queue, i + 1);
      any = true;
      break;
    }
  }
  if (!loads.empty()) {
    const Box box = loads.front();
    loads.pop_front();
    load(box);
    any = true;
  }
  if (!any && !sent.empty()) {
    const std::uint32_t barrier = sent.front().barrier;
    if (block_ended(block_of(barrier))) wrong("st.async: block %d of the cluster has ended", block_of(barrier));
    std::deque<Sent> others;
    for (const Sent& one : sent) {
      if (one.barrier != barrier) {
        others.push_back(one);
        continue;
      }
      std::memcpy(place_of(one.to, one.bytes, one.bytes, "st.async"), one.data, one.bytes);
      mbarrier_bytes(barrier, static_cast<std::int64_t>(one.bytes));
    }
    sent.swap(others);
    any = true;
  }
  return any;
}

}  // namespace emulator
