/* Compiled as C99: the header is C, and a C program gets an answer and a readable error from it. */
#include "tests/c_api_probe.h"

#include "mhla/c.h"

int c_api_probe_forward(const float* q, const float* k, const float* v, const float* mix, int64_t rows, int64_t columns,
                        int64_t D, const char* candidate, float* out) {
  const int64_t token_shape[4] = {1, rows * columns, 1, D};
  const int64_t mix_shape[2] = {4, 4};
  mhla_bidirectional_params params;
  mhla_run_options options;
  mhla_tensor out_tensor;
  mhla_bidirectional_params_init(&params, sizeof params);
  params.q = mhla_dense(q, MHLA_F32, 4, token_shape);
  params.k = mhla_dense(k, MHLA_F32, 4, token_shape);
  params.v = mhla_dense(v, MHLA_F32, 4, token_shape);
  params.mix = mhla_dense(mix, MHLA_F32, 2, mix_shape);
  params.layout.rank = 2;
  params.layout.grid[0] = rows;
  params.layout.grid[1] = columns;
  params.layout.blocks[0] = 2;
  params.layout.blocks[1] = 2;
  mhla_run_options_init(&options, sizeof options);
  options.candidate = candidate;
  out_tensor = mhla_dense(out, MHLA_F32, 4, token_shape);
  return mhla_bidirectional_forward(&params, &out_tensor, &options);
}
