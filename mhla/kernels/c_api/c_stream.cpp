// The streaming form behind mhla/c.h. A handle is a StreamingState and the lists last handed out for it.
#include <map>
#include <vector>

#include "mhla/kernels/c_api/c_api.h"
#include "mhla/kernels/streaming/streaming.h"

struct mhla_stream {
  mhla::StreamingState state;
  std::vector<mhla::NamedView> views;  // names and texts that the lists below point at
  std::vector<mhla_named_tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<mhla_text_pair> pairs;
};

namespace mhla::c_api {
namespace {

mhla_stream_config config_defaults() {
  const StreamingConfig cpp;
  mhla_stream_config config{};
  config.struct_size = sizeof config;
  config.chunk = cpp.chunk;
  config.rollback = -1;
  config.dtype = static_cast<std::int32_t>(cpp.dtype);
  config.feature_map = static_cast<std::int32_t>(cpp.feature_map);
  config.normalizer = static_cast<std::int32_t>(cpp.normalizer);
  config.beyond_mix = static_cast<std::int32_t>(cpp.beyond_mix);
  config.eps = cpp.eps;
  return config;
}

mhla_append_params append_defaults() {
  mhla_append_params params{};
  params.struct_size = sizeof params;
  return params;
}

StreamingConfig config_of(const mhla_stream_config* source, const char* entry) {
  const auto c = read(source, offsetof(mhla_stream_config, device), config_defaults(), entry, "config");
  StreamingConfig config;
  config.H = c.H;
  config.Hkv = c.Hkv;
  config.D = c.D;
  config.E = c.E;
  config.chunk = c.chunk;
  config.dtype = enum_of(c.dtype, DType::kBool, entry, "dtype");
  config.feature_map = enum_of(c.feature_map, FeatureMap::kIdentity, entry, "feature_map");
  config.normalizer = enum_of(c.normalizer, Normalizer::kOfficial, entry, "normalizer");
  config.beyond_mix = enum_of(c.beyond_mix, BeyondMix::kExtend, entry, "beyond_mix");
  config.eps = c.eps;
  if (c.has_scale != 0) config.scale = c.scale;
  config.den_features = c.den_features != 0;
  if (c.rollback < -1) fail(entry, ": rollback is ", c.rollback, ", expected -1 (one chunk) or a number of tokens");
  if (c.rollback >= 0) config.rollback = c.rollback;
  if (c.device < 0) fail(entry, ": device is ", c.device, ", expected 0 (host memory) or more");
  if (c.reserved != 0) fail(entry, ": reserved is ", c.reserved, ", expected 0");
  config.device = c.device - 1;  // kCpu is -1
  return config;
}

// The params of one append and the list of states they point at.
struct Append {
  std::vector<StreamingState*> states;
  StreamingParams params;
};

Append append_of(const mhla_append_params* source, const mhla_tensor* out, const char* entry) {
  const auto c = read(source, sizeof(mhla_append_params), append_defaults(), entry, "params");
  if (c.count < 0) fail(entry, ": count is ", c.count, ", expected 0 or more");
  if (c.count > 0 && c.streams == nullptr) fail(entry, ": streams is null, but count is ", c.count);
  Append append;
  for (std::int64_t b = 0; b < c.count; ++b) {
    append.states.push_back(&required(c.streams[b], entry, str("streams[", b, "]").c_str()).state);
  }
  StreamingParams& params = append.params;
  params.states = append.states;
  params.q = view_of(c.q, entry, "q");
  params.k = view_of(c.k, entry, "k");
  params.v = view_of(c.v, entry, "v");
  params.maybe_q_den = view_of(c.maybe_q_den, entry, "q_den");
  params.maybe_k_den = view_of(c.maybe_k_den, entry, "k_den");
  params.out = view_of(required(out, entry, "out"), entry, "out");
  return append;
}

mhla_stream* stream_of(StreamingState&& state) { return new mhla_stream{std::move(state), {}, {}, {}, {}}; }

mhla_status load_stream(const char* entry, const mhla_named_tensor* tensors, std::size_t tensor_count,
                        const mhla_text_pair* pairs, std::size_t pair_count, std::int32_t device,
                        mhla_stream** stream) {
  return guarded([&] {
    if (device < 1) fail(entry, ": device is ", device, ", expected 1 (CUDA device 0) or more");
    mhla_stream*& result = required(stream, entry, "stream");
    if (tensor_count != 0) required(tensors, entry, "tensors");
    if (pair_count != 0) required(pairs, entry, "pairs");
    std::vector<NamedView> views;
    for (size_t i = 0; i < tensor_count; ++i) {
      const char* name = &required(tensors[i].name, entry, "tensors[].name");
      views.push_back({name, view_of(tensors[i].tensor, entry, name)});
    }
    std::map<std::string, std::string> metadata;
    for (size_t i = 0; i < pair_count; ++i) {
      const char* key = &required(pairs[i].key, entry, "pairs[].key");
      if (!metadata.emplace(key, &required(pairs[i].value, entry, key)).second)
        fail(entry, ": pairs has '", key, "' twice");
    }
    result = stream_of(StreamingState::load(views, metadata, device - 1));
  });
}

}  // namespace
}  // namespace mhla::c_api

using namespace mhla;
using namespace mhla::c_api;

void mhla_stream_config_init(mhla_stream_config* config, size_t struct_size) {
  init(config, struct_size, config_defaults());
}

void mhla_append_params_init(mhla_append_params* params, size_t struct_size) {
  init(params, struct_size, append_defaults());
}

mhla_status mhla_stream_create(const mhla_stream_config* config, const mhla_tensor* mix, const char* maybe_candidate,
                               mhla_stream** stream) {
  static constexpr char kEntry[] = "mhla_stream_create";
  return guarded([&] {
    mhla_stream*& result = required(stream, kEntry, "stream");
    const View mix_view = view_of(required(mix, kEntry, "mix"), kEntry, "mix");
    result = stream_of(
        StreamingState(config_of(config, kEntry), mix_view, maybe_candidate == nullptr ? "" : maybe_candidate));
  });
}

mhla_status mhla_stream_fork(const mhla_stream* stream, mhla_stream** fork) {
  return guarded([&] {
    mhla_stream*& result = required(fork, "mhla_stream_fork", "fork");
    result = stream_of(StreamingState(required(stream, "mhla_stream_fork", "stream").state));
  });
}

mhla_status mhla_stream_restore(mhla_stream* stream, const mhla_stream* snapshot) {
  return guarded([&] {
    StreamingState& state = required(stream, "mhla_stream_restore", "stream").state;
    state = required(snapshot, "mhla_stream_restore", "snapshot").state;
  });
}

mhla_status mhla_stream_rollback(mhla_stream* stream, int64_t tokens) {
  return guarded([&] { required(stream, "mhla_stream_rollback", "stream").state.rollback(tokens); });
}

mhla_status mhla_stream_reset(mhla_stream* stream) {
  return guarded([&] { required(stream, "mhla_stream_reset", "stream").state.reset(); });
}

void mhla_stream_destroy(mhla_stream* stream) { delete stream; }

mhla_status mhla_stream_get_info(const mhla_stream* stream, mhla_stream_info* info, size_t struct_size) {
  static constexpr char kEntry[] = "mhla_stream_get_info";
  return guarded([&] {
    const StreamingState& state = required(stream, kEntry, "stream").state;
    if (struct_size < sizeof(size_t))
      fail(kEntry, ": struct_size is ", struct_size, ", expected sizeof(mhla_stream_info)");
    required(info, kEntry, "info");
    init(info, struct_size,
         mhla_stream_info{sizeof(mhla_stream_info), state.position(), state.capacity(), state.rollback_limit(),
                          state.bytes()});
  });
}

mhla_status mhla_stream_append(const mhla_append_params* params, const mhla_tensor* out,
                               const mhla_run_options* maybe_options) {
  static constexpr char kEntry[] = "mhla_stream_append";
  return guarded(
      [&] { streaming_append(append_of(params, out, kEntry).params, run_options_of(maybe_options, kEntry)); });
}

mhla_status mhla_stream_append_workspace(const mhla_append_params* params, const mhla_tensor* out,
                                         const mhla_run_options* maybe_options, int64_t* bytes) {
  static constexpr char kEntry[] = "mhla_stream_append_workspace";
  return guarded([&] {
    required(bytes, kEntry, "bytes") =
        streaming_append_workspace(append_of(params, out, kEntry).params, run_options_of(maybe_options, kEntry));
  });
}

mhla_status mhla_stream_tensors(mhla_stream* stream, const mhla_named_tensor** tensors, size_t* count) {
  static constexpr char kEntry[] = "mhla_stream_tensors";
  return guarded([&] {
    mhla_stream& handle = required(stream, kEntry, "stream");
    required(tensors, kEntry, "tensors");
    required(count, kEntry, "count");
    handle.views = handle.state.views();
    handle.tensors.clear();
    for (const NamedView& view : handle.views) handle.tensors.push_back({view.name.c_str(), tensor_of(view.view)});
    *tensors = handle.tensors.data();
    *count = handle.tensors.size();
  });
}

mhla_status mhla_stream_metadata(mhla_stream* stream, const mhla_text_pair** pairs, size_t* count) {
  static constexpr char kEntry[] = "mhla_stream_metadata";
  return guarded([&] {
    mhla_stream& handle = required(stream, kEntry, "stream");
    required(pairs, kEntry, "pairs");
    required(count, kEntry, "count");
    handle.metadata = handle.state.metadata();
    handle.pairs.clear();
    for (const auto& [key, value] : handle.metadata) handle.pairs.push_back({key.c_str(), value.c_str()});
    *pairs = handle.pairs.data();
    *count = handle.pairs.size();
  });
}

mhla_status mhla_stream_load(const mhla_named_tensor* tensors, size_t tensor_count, const mhla_text_pair* pairs,
                             size_t pair_count, mhla_stream** stream) {
  return load_stream("mhla_stream_load", tensors, tensor_count, pairs, pair_count, 1, stream);
}

mhla_status mhla_stream_load_on(const mhla_named_tensor* tensors, size_t tensor_count, const mhla_text_pair* pairs,
                                size_t pair_count, int32_t device, mhla_stream** stream) {
  return load_stream("mhla_stream_load_on", tensors, tensor_count, pairs, pair_count, device, stream);
}
