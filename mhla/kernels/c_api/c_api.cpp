// The parts of mhla/c.h that every call needs: statuses, tensors, options.
#include "mhla/kernels/c_api/c_api.h"

#include <exception>
#include <new>
#include <string_view>

namespace mhla::c_api {
namespace {

// The C enums must keep the values of the C++ ones: enum_of() only checks the range.
static_assert(MHLA_F32 == static_cast<int>(DType::kF32) && MHLA_BF16 == static_cast<int>(DType::kBF16));
static_assert(MHLA_F16 == static_cast<int>(DType::kF16) && MHLA_F64 == static_cast<int>(DType::kF64));
static_assert(MHLA_I8 == static_cast<int>(DType::kI8) && MHLA_U8 == static_cast<int>(DType::kU8));
static_assert(MHLA_I16 == static_cast<int>(DType::kI16) && MHLA_U16 == static_cast<int>(DType::kU16));
static_assert(MHLA_I32 == static_cast<int>(DType::kI32) && MHLA_U32 == static_cast<int>(DType::kU32));
static_assert(MHLA_I64 == static_cast<int>(DType::kI64) && MHLA_U64 == static_cast<int>(DType::kU64));
static_assert(MHLA_BOOL == static_cast<int>(DType::kBool));
static_assert(MHLA_RELU_EPS == static_cast<int>(FeatureMap::kReluEps));
static_assert(MHLA_RELU == static_cast<int>(FeatureMap::kRelu));
static_assert(MHLA_ELU1 == static_cast<int>(FeatureMap::kElu1));
static_assert(MHLA_IDENTITY == static_cast<int>(FeatureMap::kIdentity));
static_assert(MHLA_NORMALIZER_PAPER == static_cast<int>(Normalizer::kPaper));
static_assert(MHLA_NORMALIZER_NONE == static_cast<int>(Normalizer::kNone));
static_assert(MHLA_NORMALIZER_OFFICIAL == static_cast<int>(Normalizer::kOfficial));
static_assert(MHLA_BEYOND_MIX_ERROR == static_cast<int>(BeyondMix::kError));
static_assert(MHLA_BEYOND_MIX_EXTEND == static_cast<int>(BeyondMix::kExtend));
static_assert(MHLA_MAX_RANK == kMaxRank);

std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Never throws, also when there is no memory left for the message.
void remember(const char* message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
}

mhla_run_options default_run_options() {
  mhla_run_options options{};
  options.struct_size = sizeof options;
  return options;
}

}  // namespace

mhla_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    remember(error.what());
    return MHLA_ERROR_ARGUMENT;
  } catch (const std::bad_alloc&) {
    remember("memory ran out");
    return MHLA_ERROR_MEMORY;
  } catch (const std::exception& error) {
    remember(error.what());
    return MHLA_ERROR_INTERNAL;
  } catch (...) {
    remember("an exception of unknown type");
    return MHLA_ERROR_INTERNAL;
  }
}

View view_of(const mhla_tensor& tensor, const char* entry, const char* argument) {
  View view;
  if (tensor.rank == 0) return view;
  if (tensor.rank < 0 || tensor.rank > MHLA_MAX_RANK) {
    fail(entry, ": ", argument, " has rank ", tensor.rank, ", expected 0 to ", MHLA_MAX_RANK);
  }
  if (tensor.device < 0)
    fail(entry, ": ", argument, " has device ", tensor.device, ", expected 0 (host memory) or more");
  if (tensor.reserved != 0) fail(entry, ": ", argument, " has reserved ", tensor.reserved, ", expected 0");
  view.data = tensor.data;
  view.dtype = enum_of(tensor.dtype, DType::kBool, entry, str(argument, ".dtype").c_str());
  view.rank = tensor.rank;
  view.device = tensor.device - 1;  // kCpu is -1
  std::copy_n(tensor.shape, tensor.rank, view.shape.begin());
  std::copy_n(tensor.stride, tensor.rank, view.stride.begin());
  return view;
}

mhla_tensor tensor_of(const ConstView& view) {
  mhla_tensor tensor{};
  tensor.data = const_cast<void*>(view.data);
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.rank = view.rank;
  tensor.device = view.device + 1;
  std::copy_n(view.shape.begin(), view.rank, tensor.shape);
  std::copy_n(view.stride.begin(), view.rank, tensor.stride);
  return tensor;
}

RunOptions run_options_of(const mhla_run_options* maybe_options, const char* entry) {
  if (maybe_options == nullptr) return {};
  const mhla_run_options options =
      read(maybe_options, offsetof(mhla_run_options, stream), default_run_options(), entry, "options");
  RunOptions run;
  if (options.candidate != nullptr) run.candidate = options.candidate;
  if (options.pool != nullptr) run.maybe_executor = options.pool->executor.get();
  if (options.workspace == nullptr && options.workspace_bytes != 0) {
    fail(entry, ": options.workspace is null, but workspace_bytes is ", options.workspace_bytes);
  }
  run.workspace = {static_cast<std::byte*>(options.workspace), options.workspace_bytes};
  run.stream = options.stream;
  if (options.kept == nullptr && options.kept_bytes != 0)
    fail(entry, ": options.kept is null, but kept_bytes is ", options.kept_bytes);
  run.kept = {static_cast<std::byte*>(options.kept), options.kept_bytes};
  return run;
}

}  // namespace mhla::c_api

using namespace mhla::c_api;

const char* mhla_last_error(void) { return last_error().c_str(); }

const char* mhla_version(void) { return MHLA_VERSION; }

mhla_tensor mhla_dense(const void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  mhla_tensor tensor{};
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = shape == nullptr && rank != 0 ? -1 : rank;
  if (tensor.rank < 0 || tensor.rank > MHLA_MAX_RANK) return tensor;  // every call refuses it, naming the argument
  std::uint64_t stride = 1;                                           // a product too large is refused there as well
  for (std::int32_t axis = tensor.rank; axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[axis]);
  }
  return tensor;
}

void mhla_run_options_init(mhla_run_options* options, size_t struct_size) {
  init(options, struct_size, default_run_options());
}
