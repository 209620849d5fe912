/* The operator from C, as any language that calls C would: an 8 x 12 image in 2 x 3 blocks, 2 heads, and a training
 * step's gradient of the mixing matrix. Every call returns a status; mhla_last_error() says what went wrong. */
#include <math.h>
#include <stdio.h>

#include "mhla/c.h"

enum { kRows = 8, kColumns = 12, kTokens = kRows * kColumns, kHeads = 2, kSize = 16, kBlocks = 6 };
enum { kNumbers = kTokens * kHeads * kSize };

static int failed(const char* call) {
  fprintf(stderr, "%s: %s\n", call, mhla_last_error());
  return 1;
}

int main(void) {
  static float q[kNumbers], k[kNumbers], v[kNumbers], out[kNumbers], dout[kNumbers];
  static float mix[kBlocks * kBlocks], dmix[kBlocks * kBlocks];
  const int64_t tokens[4] = {1, kTokens, kHeads, kSize}, square[2] = {kBlocks, kBlocks};
  mhla_bidirectional_params params;
  mhla_grads grads;
  mhla_tensor result = mhla_dense(out, MHLA_F32, 4, tokens);
  float largest = 0, steepest = 0;
  int i;

  for (i = 0; i < kNumbers; ++i) {
    q[i] = sinf(0.37f * (float)i);
    k[i] = cosf(0.23f * (float)i);
    v[i] = sinf(0.11f * (float)i);
    dout[i] = 1;
  }
  for (i = 0; i < kBlocks * kBlocks; ++i) mix[i] = i % (kBlocks + 1) == 0 ? 1.0f : 0.25f; /* a trained one */

  mhla_bidirectional_params_init(&params, sizeof params);
  params.q = mhla_dense(q, MHLA_F32, 4, tokens);
  params.k = mhla_dense(k, MHLA_F32, 4, tokens);
  params.v = mhla_dense(v, MHLA_F32, 4, tokens);
  params.mix = mhla_dense(mix, MHLA_F32, 2, square);
  params.layout.rank = 2;
  params.layout.grid[0] = kRows, params.layout.grid[1] = kColumns;
  params.layout.blocks[0] = 2, params.layout.blocks[1] = 3;
  if (mhla_bidirectional_forward(&params, &result, NULL) != MHLA_OK) return failed("forward");

  mhla_grads_init(&grads, sizeof grads);
  grads.dout = mhla_dense(dout, MHLA_F32, 4, tokens);
  grads.dmix = mhla_dense(dmix, MHLA_F32, 2, square); /* the others are not given, so not computed */
  if (mhla_bidirectional_backward(&params, &grads, NULL) != MHLA_OK) return failed("backward");

  for (i = 0; i < kNumbers; ++i) largest = fmaxf(largest, fabsf(out[i]));
  for (i = 0; i < kBlocks * kBlocks; ++i) steepest = fmaxf(steepest, fabsf(dmix[i]));
  /* An output is a weighted mean of values, so it cannot leave their range. */
  if (!(largest > 0 && largest <= 1.001f && steepest > 0)) {
    fprintf(stderr, "c_attention: largest output %g, largest gradient %g\n", largest, steepest);
    return 1;
  }
  printf("mhla %s from C: largest output %.4f, largest gradient of mix %.4f\n", mhla_version(), largest, steepest);
  return 0;
}
