/* The operator for C, and for every language that can call C: forward and backward of the bidirectional and the
 * causal form, streaming, on raw pointers to host memory or to that of a CUDA device. The mathematics and the meaning
 * of every field are those of the C++ headers mhla/kernels/{bidirectional,chunkwise,streaming}/.
 *
 *   mhla_bidirectional_params params;
 *   mhla_bidirectional_params_init(&params, sizeof params);
 *   params.q = mhla_dense(q, MHLA_F32, 4, (int64_t[]){B, N, H, D});   ... k, v, mix, layout
 *   mhla_tensor out = mhla_dense(o, MHLA_F32, 4, (int64_t[]){B, N, H, E});
 *   if (mhla_bidirectional_forward(&params, &out, NULL) != MHLA_OK) puts(mhla_last_error());
 *
 * Every call returns a status; no exception leaves the library. On an error outputs and states are untouched.
 * Structs that may grow open with struct_size, which their *_init function sets along with the defaults: a program
 * compiled against an older header keeps working with a newer library. */
#ifndef MHLA_C_H_
#define MHLA_C_H_

/* NOLINTBEGIN(modernize-deprecated-headers,modernize-use-using,modernize-redundant-void-arg): this is C */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------------------------- */

typedef int32_t mhla_status;
enum {
  MHLA_OK = 0,
  MHLA_ERROR_ARGUMENT = 1, /* the caller's mistake, or no candidate takes the problem */
  MHLA_ERROR_MEMORY = 2,   /* memory ran out */
  MHLA_ERROR_INTERNAL = 3  /* anything else; please report it */
};

/* Why the last failing call of this thread failed: entry point, argument, what came, what was expected. Never null;
 * valid until the next failing call of this thread. */
const char* mhla_last_error(void);

const char* mhla_version(void); /* such as "0.1.0" */

/* ---- tensors --------------------------------------------------------------------------------------------------- */

/* mhla_tensor.dtype */
enum {
  MHLA_F32 = 0,
  MHLA_BF16 = 1,
  MHLA_F16 = 2,
  MHLA_F64 = 3,
  MHLA_I8 = 4,
  MHLA_U8 = 5,
  MHLA_I16 = 6,
  MHLA_U16 = 7,
  MHLA_I32 = 8,
  MHLA_U32 = 9,
  MHLA_I64 = 10,
  MHLA_U64 = 11,
  MHLA_BOOL = 12
};

#define MHLA_MAX_RANK 8

/* Memory with a shape. All zero means "not given". Inputs are never written through `data`. */
typedef struct mhla_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;                  /* 0: not given */
  int32_t device;                /* 0: host memory; 1 + n: CUDA device n */
  int32_t reserved;              /* 0 */
  int64_t shape[MHLA_MAX_RANK];  /* the first `rank` count */
  int64_t stride[MHLA_MAX_RANK]; /* in elements */
} mhla_tensor;

/* A contiguous row-major tensor in host memory. A rank outside 0..MHLA_MAX_RANK gives one that every call refuses. */
mhla_tensor mhla_dense(const void* data, int32_t dtype, int32_t rank, const int64_t* shape);

typedef struct mhla_named_tensor {
  const char* name;
  mhla_tensor tensor;
} mhla_named_tensor;

typedef struct mhla_text_pair {
  const char* key;
  const char* value;
} mhla_text_pair;

/* ---- options --------------------------------------------------------------------------------------------------- */

enum { MHLA_RELU_EPS = 0, MHLA_RELU = 1, MHLA_ELU1 = 2, MHLA_IDENTITY = 3 };                /* feature_map */
enum { MHLA_NORMALIZER_PAPER = 0, MHLA_NORMALIZER_NONE = 1, MHLA_NORMALIZER_OFFICIAL = 2 }; /* normalizer */
enum { MHLA_BEYOND_MIX_ERROR = 0, MHLA_BEYOND_MIX_EXTEND = 1 };                             /* beyond_mix */

/* Threads of the caller's choice. Results have the same bits whatever is chosen here. One pool may serve several
 * calls at once and must outlive them. */
typedef struct mhla_pool mhla_pool;
mhla_status mhla_pool_create(int32_t threads, mhla_pool** pool); /* the calling thread is one of them */
void mhla_pool_destroy(mhla_pool* pool);                         /* null is fine */

/* A pool that runs on the caller's own threads: `run` calls task(task_data, index, worker) once for every index in
 * [0, count) and returns when all are done. `worker` is in [0, concurrency); no two calls at once share a worker. */
typedef void (*mhla_task_fn)(void* task_data, int64_t index, int32_t worker);
typedef void (*mhla_run_fn)(void* context, int64_t count, mhla_task_fn task, void* task_data);
mhla_status mhla_pool_from_callback(mhla_run_fn run, void* context, int32_t concurrency, mhla_pool** pool);

mhla_status mhla_set_threads(int32_t threads); /* workers of calls that name no pool; affects calls that start after */
int32_t mhla_threads(void);

/* How to run a call; null stands for the defaults. Nothing here changes what is computed; `kept` must
 * be of the same inputs. */
typedef struct mhla_run_options {
  size_t struct_size;
  const char* candidate; /* "cuda", "simd", "ref"; null: the first that takes the problem */
  mhla_pool* pool;       /* null: the default pool */
  void* workspace;       /* 64-byte aligned, at least *_workspace() bytes, where the tensors are; null: allocated by
                            the call */
  size_t workspace_bytes;
  void* stream; /* cudaStream_t for tensors on a CUDA device, null: the default stream; the call returns before it
                   ran, and can be recorded into a graph when it is given its workspace */
  void* kept;   /* what forward leaves for backward of the same inputs: as many bytes as *_kept() says, aligned like the
                   workspace and where it is; null: nothing */
  size_t kept_bytes;
} mhla_run_options;
void mhla_run_options_init(mhla_run_options* options, size_t struct_size);

/* ---- bidirectional --------------------------------------------------------------------------------------------- */

/* rank 1: runs of block_size tokens. rank 2 and 3: grid[0..rank) tokens and blocks[0..rank) blocks per axis, the
 * slowest axis first. */
typedef struct mhla_layout {
  int32_t rank;
  int32_t reserved; /* 0 */
  int64_t block_size;
  int64_t grid[3];
  int64_t blocks[3];
} mhla_layout;

typedef struct mhla_bidirectional_params {
  size_t struct_size;
  mhla_tensor q;                /* [B, N, H, D]    last stride 1 */
  mhla_tensor k;                /* [B, N, Hkv, D] */
  mhla_tensor v;                /* [B, N, Hkv, E] */
  mhla_tensor maybe_q_den;      /* [B, N, H, D]    both or none */
  mhla_tensor maybe_k_den;      /* [B, N, Hkv, D] */
  mhla_tensor mix;              /* [M, M] or [H, M, M], f32 (f64 for f64) */
  mhla_tensor maybe_cu_seqlens; /* [S + 1] i32 or i64 */
  mhla_layout layout;
  int32_t feature_map; /* MHLA_RELU_EPS */
  int32_t normalizer;  /* MHLA_NORMALIZER_PAPER */
  double eps;          /* 1e-6 */
  double scale;        /* 1 */
} mhla_bidirectional_params;
void mhla_bidirectional_params_init(mhla_bidirectional_params* params, size_t struct_size);

/* Gradients of either form: overwritten, not accumulated; one that is not given is not computed. */
typedef struct mhla_grads {
  size_t struct_size;
  mhla_tensor dout; /* [B, N, H, E]  in */
  mhla_tensor dq;   /* like q, and so on */
  mhla_tensor dk;
  mhla_tensor dv;
  mhla_tensor dmix;
  mhla_tensor maybe_dq_den;
  mhla_tensor maybe_dk_den;
} mhla_grads;
void mhla_grads_init(mhla_grads* grads, size_t struct_size);

/* out: [B, N, H, E]. The workspace calls answer for the same call with the same options; *_kept()
 * says how many bytes forward can keep: 0 where backward would gain nothing. */
mhla_status mhla_bidirectional_forward(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                       const mhla_run_options* maybe_options);
mhla_status mhla_bidirectional_backward(const mhla_bidirectional_params* params, const mhla_grads* grads,
                                        const mhla_run_options* maybe_options);
mhla_status mhla_bidirectional_forward_workspace(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                                 const mhla_run_options* maybe_options, int64_t* bytes);
mhla_status mhla_bidirectional_backward_workspace(const mhla_bidirectional_params* params, const mhla_grads* grads,
                                                  const mhla_run_options* maybe_options, int64_t* bytes);
mhla_status mhla_bidirectional_kept(const mhla_bidirectional_params* params, const mhla_tensor* out,
                                    const mhla_run_options* maybe_options, int64_t* bytes);

/* ---- causal, chunk by chunk ------------------------------------------------------------------------------------ */

typedef struct mhla_chunkwise_params {
  size_t struct_size;
  mhla_tensor q;           /* [B, N, H, D]    last stride 1 */
  mhla_tensor k;           /* [B, N, Hkv, D] */
  mhla_tensor v;           /* [B, N, Hkv, E] */
  mhla_tensor maybe_q_den; /* [B, N, H, D]    both or none */
  mhla_tensor maybe_k_den; /* [B, N, Hkv, D] */
  mhla_tensor mix;         /* [L, L] or [H, L, L], f32 (f64 for f64), L at least the chunks of the longest sequence */
  mhla_tensor maybe_cu_seqlens; /* [S + 1] i32 or i64 */
  int64_t chunk;                /* 64 */
  int32_t feature_map;          /* MHLA_RELU_EPS */
  int32_t normalizer;           /* MHLA_NORMALIZER_NONE, or PAPER */
  int32_t beyond_mix;           /* MHLA_BEYOND_MIX_ERROR */
  int32_t has_scale;            /* 0: scale is D^-1/2 with NONE and 1 with PAPER, whatever stands below */
  double eps;                   /* 1e-6 */
  double scale;
} mhla_chunkwise_params;
void mhla_chunkwise_params_init(mhla_chunkwise_params* params, size_t struct_size);

mhla_status mhla_chunkwise_forward(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                   const mhla_run_options* maybe_options);
mhla_status mhla_chunkwise_backward(const mhla_chunkwise_params* params, const mhla_grads* grads,
                                    const mhla_run_options* maybe_options);
mhla_status mhla_chunkwise_forward_workspace(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                             const mhla_run_options* maybe_options, int64_t* bytes);
mhla_status mhla_chunkwise_backward_workspace(const mhla_chunkwise_params* params, const mhla_grads* grads,
                                              const mhla_run_options* maybe_options, int64_t* bytes);
mhla_status mhla_chunkwise_kept(const mhla_chunkwise_params* params, const mhla_tensor* out,
                                const mhla_run_options* maybe_options, int64_t* bytes);

/* ---- streaming ------------------------------------------------------------------------------------------------- */

/* One causal sequence, all heads, a few tokens at a time: the bits of one chunkwise pass, however it is split. */
typedef struct mhla_stream mhla_stream;

typedef struct mhla_stream_config {
  size_t struct_size;
  int64_t H, Hkv, D, E; /* Hkv 0: as H */
  int64_t chunk;        /* 64 */
  int64_t rollback;     /* R, tokens that can be taken back; -1: one chunk */
  int32_t dtype;        /* MHLA_F32 */
  int32_t feature_map;  /* MHLA_RELU_EPS */
  int32_t normalizer;   /* MHLA_NORMALIZER_NONE, or PAPER */
  int32_t beyond_mix;   /* MHLA_BEYOND_MIX_ERROR */
  int32_t den_features; /* 1: tokens come with q_den and k_den */
  int32_t has_scale;    /* as in mhla_chunkwise_params */
  double eps;           /* 1e-6 */
  double scale;
  int32_t device;   /* whose memory holds the stream, as in mhla_tensor: 0: host memory; 1 + n: CUDA device n */
  int32_t reserved; /* 0 */
} mhla_stream_config;
void mhla_stream_config_init(mhla_stream_config* config, size_t struct_size);

/* mix, [L, L] or [H, L, L], in host memory or on the device of the stream, is copied. The stream stays with its
 * candidate and its device; appended tensors are where it is. What is not an append and touches the memory of a stream
 * on a device (fork, restore, tensors, destroy) waits for that device. */
mhla_status mhla_stream_create(const mhla_stream_config* config, const mhla_tensor* mix, const char* maybe_candidate,
                               mhla_stream** stream);
mhla_status mhla_stream_fork(const mhla_stream* stream, mhla_stream** fork);       /* both go on, independently */
mhla_status mhla_stream_restore(mhla_stream* stream, const mhla_stream* snapshot); /* a fork kept from before */
mhla_status mhla_stream_rollback(mhla_stream* stream, int64_t tokens);
mhla_status mhla_stream_reset(mhla_stream* stream);
void mhla_stream_destroy(mhla_stream* stream); /* null is fine */

typedef struct mhla_stream_info {
  size_t struct_size;
  int64_t position;       /* tokens seen */
  int64_t capacity;       /* tokens mix has rows for; INT64_MAX with EXTEND */
  int64_t rollback_limit; /* tokens that can be taken back now */
  int64_t bytes;          /* memory held */
} mhla_stream_info;
/* Fills the first struct_size bytes of info. */
mhla_status mhla_stream_get_info(const mhla_stream* stream, mhla_stream_info* info, size_t struct_size);

/* T more tokens for each of `count` distinct streams of one configuration, at whatever positions they stand. */
typedef struct mhla_append_params {
  size_t struct_size;
  mhla_stream* const* streams;
  int64_t count;           /* B */
  mhla_tensor q;           /* [B, T, H, D] */
  mhla_tensor k;           /* [B, T, Hkv, D] */
  mhla_tensor v;           /* [B, T, Hkv, E] */
  mhla_tensor maybe_q_den; /* [B, T, H, D]    with den_features */
  mhla_tensor maybe_k_den; /* [B, T, Hkv, D] */
} mhla_append_params;
void mhla_append_params_init(mhla_append_params* params, size_t struct_size);

/* out: [B, T, H, E] */
mhla_status mhla_stream_append(const mhla_append_params* params, const mhla_tensor* out,
                               const mhla_run_options* maybe_options);
mhla_status mhla_stream_append_workspace(const mhla_append_params* params, const mhla_tensor* out,
                                         const mhla_run_options* maybe_options, int64_t* bytes);

/* Everything a stream needs to go on elsewhere, for the caller to write in a format of his choice, and back.
 * The lists belong to the stream and are valid until the next call that names it; the tensors are in host memory. A
 * stream of a CUDA candidate goes to CUDA device 0, or with mhla_stream_load_on to the device that is named there (1 +
 * n: CUDA device n), the others stay in host memory. */
mhla_status mhla_stream_tensors(mhla_stream* stream, const mhla_named_tensor** tensors, size_t* count);
mhla_status mhla_stream_metadata(mhla_stream* stream, const mhla_text_pair** pairs, size_t* count);
mhla_status mhla_stream_load(const mhla_named_tensor* tensors, size_t tensor_count, const mhla_text_pair* pairs,
                             size_t pair_count, mhla_stream** stream);
mhla_status mhla_stream_load_on(const mhla_named_tensor* tensors, size_t tensor_count, const mhla_text_pair* pairs,
                                size_t pair_count, int32_t device, mhla_stream** stream);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-deprecated-headers,modernize-use-using,modernize-redundant-void-arg) */

#endif /* MHLA_C_H_ */
