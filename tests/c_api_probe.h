/* One call of mhla/c.h made by C code, for c_api_test.cpp. */
#ifndef MHLA_TESTS_C_API_PROBE_H_
#define MHLA_TESTS_C_API_PROBE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
    /* The bidirectional form on a rows x columns grid of 2 x 2 blocks, one head of size D; the status of the call. */
    int
    c_api_probe_forward(const float* q, const float* k, const float* v, const float* mix, int64_t rows, int64_t columns,
                        int64_t D, const char* candidate, float* out);

#endif /* MHLA_TESTS_C_API_PROBE_H_ */
