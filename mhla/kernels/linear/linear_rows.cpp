#include "mhla/kernels/linear/linear_rows.h"

#include <algorithm>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear_rows_job.h"

namespace mhla {
namespace {

constexpr const char* kLinearRows = "linear_rows";

bool pieces(const void* data, std::int64_t stride, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * size_of(dtype) % 16 == 0;
}

template <class V>
std::string wrong(const V& view, const char* name, DType dtype, std::int64_t rows, std::int64_t columns, int device) {
  if (!view.given()) return str(name, " is not given");
  const bool matrix = rows > 0;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.rank != (matrix ? 2 : 1) || (matrix && view.shape[0] != rows) || view.shape[last] != columns)
    return str(name, " has shape ", shape_text(view), ", expected [", matrix ? str(rows, ", ") : "", columns, "]");
  if (view.dtype != dtype) return str(name, " is ", name_of(view.dtype), ", expected ", name_of(dtype));
  if (view.device != device) return str(name, " is on another device than x");
  if (view.shape[last] > 1 && view.stride[last] != 1) return str(name, " has last stride ", view.stride[last]);
  if (!pieces(view.data, matrix && rows > 1 ? view.stride[0] : 0, dtype))
    return str(name, " has rows that do not begin at multiples of 16 bytes");
  return "";
}

bool contiguous_matrix(const ConstView& view) {
  return view.given() && view.rank == 2 && view.stride[1] == 1 && view.stride[0] == view.shape[1];
}
std::int64_t stride_of(const ConstView& view) { return view.given() && view.rank == 2 ? view.stride[0] : 0; }

void run_rows(const LinearRowsParams& p, const RowsStep& step, const View& out, const View& maybe_second_out,
              const RunOptions& run) {
  const std::int64_t R = p.x.shape[0], K = p.x.shape[1], O = p.weight.shape[0];
  const DType dtype = p.after == RowsAfter::kAdd ? DType::kF32 : DType::kBF16;
  std::string why = wrong(out, "out", dtype, R, O, p.x.device);
  const bool both = p.after == RowsAfter::kStore && p.maybe_second.given();
  if (why.empty() && both) why = wrong(maybe_second_out, "second_out", dtype, R, p.maybe_second.shape[0], p.x.device);
  if (!why.empty()) fail(kLinearRows, ": ", why);
  LinearRowsJob job;
  job.x = p.x.data, job.weight = p.weight.data, job.second = p.maybe_second.data;
  job.scale = p.maybe_scale.data, job.gate = p.maybe_gate.data;
  job.add = static_cast<const float*>(p.maybe_add.data);
  job.out = out.data, job.second_out = both ? maybe_second_out.data : nullptr;
  job.x_stride = stride_of(p.x), job.weight_stride = stride_of(p.weight), job.second_stride = stride_of(p.maybe_second);
  job.gate_stride = stride_of(p.maybe_gate), job.add_stride = stride_of(p.maybe_add);
  job.out_stride = out.stride[0], job.second_out_stride = both ? maybe_second_out.stride[0] : 0;
  job.R = static_cast<int>(R), job.K = static_cast<int>(K), job.O = static_cast<int>(O);
  job.O2 = p.maybe_second.given() ? static_cast<int>(p.maybe_second.shape[0]) : 0;
  job.head = static_cast<int>(p.head), job.eps = static_cast<float>(p.eps);
  job.per_K = 1.0f / static_cast<float>(K);
  const RowsTurn& turn = step.turn;
  job.cos = static_cast<const float*>(turn.cos.data), job.cos_stride = stride_of(turn.cos);
  job.sin = static_cast<const float*>(turn.sin.data), job.sin_stride = stride_of(turn.sin);
  job.turned = static_cast<int>(turn.columns), job.turn_head = static_cast<int>(turn.head), job.map = turn.feature_map;
  job.silu_second = step.silu_second, job.silu_done = step.silu_done;
  if (job.turned > 0) job.per_half = 2.0f / static_cast<float>(job.turn_head);
  if (const ConstView& next = step.maybe_next; contiguous_matrix(next) && next.device == p.x.device) {
    job.next = static_cast<const std::byte*>(next.data);
    job.next_lines = static_cast<int>(
        std::min<std::int64_t>(next.shape[0] * next.shape[1] * size_of(next.dtype) / kRowsLine, INT32_MAX));
  }
  const RowsCut cut = rows_cut(K, p.before == RowsBefore::kHeadNorm ? p.head : 0);
  job.slice = cut.slice;
  const DeviceGuard guard(p.x.device);
  const DeviceFacts facts = device_facts(p.x.device);
  const bool pairs = p.after == RowsAfter::kSwiglu;
  const bool sm90 = facts.major == 9 && facts.minor == 0 && rows_on_sm90(p.before, p.after);
  const int columns = pairs ? job.O : job.O + job.O2;
  job.tile = sm90 ? rows_tile_sm90(job.R, columns, job.turned, cut.slices, pairs) : rows_tile(p.after);
  job.turned_tiles = rows_tiles(columns, job.turned, job.tile).turned;
  if (!sm90) return linear_rows_cuda(p, job, cut.slices, run.stream);
  linear_rows_sm90(p, job, cut.slices, run.stream);
}

}  // namespace

std::string linear_rows_fit(const LinearRowsParams& p) {
  if (!cuda_built()) return "built without CUDA";
  if (p.x.device == kCpu) return "x is in host memory";
  if (device_facts(p.x.device).major < 9) return "the device is older than compute capability 9.0";
  if (p.x.rank != 2 || p.weight.rank != 2) return "x and weight are no matrices";
  const std::int64_t R = p.x.shape[0], K = p.x.shape[1], O = p.weight.shape[0];
  if (R < 1 || R > kMostRows) return str(R, " rows, expected 1 to ", kMostRows);
  if (K < 8 || K % 8 != 0) return str("K is ", K, ", expected a multiple of 8");
  if (O < 8 || O % 8 != 0 || O > INT32_MAX) return str("O is ", O, ", expected a multiple of 8");
  const bool of_heads = p.before == RowsBefore::kHeadNorm, second = p.maybe_second.given();
  const std::int64_t head = of_heads ? p.head : 0;
  if (of_heads && (head < 8 || head > 256 || (head & (head - 1)) != 0))
    return str("heads of ", head, ", expected a power of 2 from 8 to 256");
  if (rows_cut(K, head).slices == 0) return str("K is ", K, ", which has no slices for heads of ", head);
  if (p.after == RowsAfter::kSwiglu && (!second || p.maybe_second.shape[0] != O)) return "second has another size";
  if (p.after == RowsAfter::kAdd && second) return "second with add";
  const int device = p.x.device;
  std::string why = wrong(p.x, "x", p.before == RowsBefore::kNorm ? DType::kF32 : DType::kBF16, R, K, device);
  const auto check = [&](const ConstView& view, const char* name, DType dtype, std::int64_t rows,
                         std::int64_t columns) {
    if (why.empty()) why = wrong(view, name, dtype, rows, columns, device);
  };
  check(p.weight, "weight", DType::kBF16, O, K);
  if (second) check(p.maybe_second, "second", DType::kBF16, p.maybe_second.shape[0], K);
  if (second && p.maybe_second.shape[0] % 8 != 0) return "second is no multiple of 8";
  if (p.before != RowsBefore::kPlain) check(p.maybe_scale, "scale", DType::kBF16, 0, of_heads ? head : K);
  if (of_heads) check(p.maybe_gate, "gate", DType::kBF16, R, K);
  if (p.after == RowsAfter::kAdd) check(p.maybe_add, "add", DType::kF32, R, O);
  return why;
}

void linear_rows(const LinearRowsParams& p, const View& out, const View& maybe_second_out, const RunOptions& run) {
  if (const std::string why = linear_rows_fit(p); !why.empty()) fail(kLinearRows, ": ", why);
  run_rows(p, RowsStep(), out, maybe_second_out, run);
}

std::string linear_rows_step_fit(const LinearRowsParams& p, const RowsStep& step) {
  if (std::string why = linear_rows_fit(p); !why.empty()) return why;
  const RowsTurn& turn = step.turn;
  if (turn.columns == 0) return "";
  if (p.before != RowsBefore::kNorm || p.after != RowsAfter::kStore) return "turned columns without norm and store";
  const std::int64_t R = p.x.shape[0], O = p.weight.shape[0];
  if (turn.head < 8 || turn.head % 8 != 0) return str("heads of ", turn.head, ", expected a multiple of 8");
  if (turn.columns < 0 || turn.columns > O || turn.columns % turn.head != 0)
    return str(turn.columns, " turned columns of ", O, ", expected whole heads of ", turn.head);
  std::string why = wrong(turn.cos, "cos", DType::kF32, R, turn.head / 2, p.x.device);
  return why.empty() ? wrong(turn.sin, "sin", DType::kF32, R, turn.head / 2, p.x.device) : why;
}

void linear_rows_step(const LinearRowsParams& p, const RowsStep& step, const View& out, const View& maybe_second_out,
                      const RunOptions& run) {
  if (const std::string why = linear_rows_step_fit(p, step); !why.empty()) fail(kLinearRows, ": ", why);
  run_rows(p, step, out, maybe_second_out, run);
}

}  // namespace mhla
