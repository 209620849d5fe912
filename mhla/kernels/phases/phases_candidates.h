// Candidates of the phases; the CPU vectors are those of the forms, which look at Problem::part.
#pragma once

#include "mhla/core/threads.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/common/problem.h"

namespace mhla {

void phases_ref(const Problem& problem, Workspace& workspace, Executor& executor);

}  // namespace mhla
