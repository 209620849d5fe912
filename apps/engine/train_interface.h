// What libmhla_train.so offers: training and evaluation through mhla/train. It is opened when a command needs it, so
// that mhla itself starts without LibTorch. Plain C; requests and rows are JSON.
#pragma once

#include <stddef.h>

#define MHLA_TRAIN_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

// A row of the run's log, or with `progress` one that is shown and not kept.
typedef void (*mhla_train_row)(void* context, int progress, const char* json);

int mhla_train_interface(void);
// {"command": "train classify" or "train lm", "out": FOLDER, "resume": BOOL, "overwrite": BOOL, "options": {...}},
// {"command": "eval classify" or "eval lm", "run": FOLDER, ...}, {"command": "eval lm tasks", ...},
// {"command": "predict", "run": FOLDER, "images": [PATH, ...], ...}, {"command": "export", "run": FOLDER, "out": FILE,
// ...},
// {"command": "generate", "run": FOLDER, "prompts": [...], ...}, {"command": "bench model", ...} or {"command":
// "analyze", "runs": [FOLDER, ...], ...}. Returns the exit code of the program, with `reason` filled in where it is not
// 0.
int mhla_train_run(const char* request, mhla_train_row row, void* context, char* reason, size_t reason_size);

#ifdef __cplusplus
}
#endif
