// Candidates of the phases; the CPU vectors are those of the forms, which look at Problem::part.
#pragma once

#include <string>

#include "mhla/core/executor.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/common/problem.h"

namespace mhla {

// Plain CUDA, both forms, for whole slices of the first axis. In a build without CUDA it steps aside saying so, and
// phases_cuda() throws (phases_cuda_off.cpp).
std::string phases_fit_cuda(const Problem& problem);
void phases_cuda(const Problem& problem, Workspace& workspace, Executor& executor);

void phases_ref(const Problem& problem, Workspace& workspace, Executor& executor);

}  // namespace mhla
