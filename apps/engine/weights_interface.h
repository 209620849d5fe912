// What libmhla_weights.so offers: weights under other names, and models of another size or attention, through
// mhla/models. It is opened when a command needs it, so that mhla itself starts without LibTorch. Plain C, JSON in and
// out.
#pragma once

#include <stddef.h>

#define MHLA_WEIGHTS_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*mhla_weights_row)(void* context, const char* json);

int mhla_weights_interface(void);
// {"command": "layers", "names": {NAME: [SHAPE]}}: which attention layers these names are, a row each.
// {"command": "convert", "in": PATH, "out": PATH, ...}: apps/commands/convert.cpp fills it in; a row says what was
// written. Returns the exit code of the program, with `reason` filled in where it is not 0.
int mhla_weights_run(const char* request, mhla_weights_row row, void* context, char* reason, size_t reason_size);

#ifdef __cplusplus
}
#endif
