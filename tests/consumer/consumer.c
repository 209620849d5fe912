/* The program of consumer.cpp, in C: q = k = 1 and a mix of ones give the mean of v. */
#include <stdio.h>

#include "mhla/c.h"

enum { kTokens = 12, kSize = 4 };

int main(void) {
  static double q[kTokens * kSize], v[kTokens * kSize], out[kTokens * kSize];
  static const double mix[4] = {1, 1, 1, 1};
  const int64_t shape[4] = {1, kTokens, 1, kSize};
  const int64_t mix_shape[2] = {2, 2};
  mhla_bidirectional_params params;
  mhla_tensor out_tensor = mhla_dense(out, MHLA_F64, 4, shape);
  int i;
  for (i = 0; i < kTokens * kSize; ++i) {
    q[i] = 1;
    v[i] = i / kSize;
  }
  mhla_bidirectional_params_init(&params, sizeof params);
  params.q = params.k = mhla_dense(q, MHLA_F64, 4, shape);
  params.v = mhla_dense(v, MHLA_F64, 4, shape);
  params.mix = mhla_dense(mix, MHLA_F64, 2, mix_shape);
  params.layout.rank = 1;
  params.layout.block_size = 6;
  if (mhla_bidirectional_forward(&params, &out_tensor, NULL) != MHLA_OK) {
    fprintf(stderr, "%s\n", mhla_last_error());
    return 1;
  }
  for (i = 0; i < kTokens * kSize; ++i) {
    if (!(out[i] > 5.5 - 1e-6 && out[i] < 5.5 + 1e-6)) {
      fprintf(stderr, "consumer_c: got %g, want 5.5\n", out[i]);
      return 1;
    }
  }
  printf("consumer_c: mhla %s, 5.5 everywhere\n", mhla_version());
  return 0;
}
