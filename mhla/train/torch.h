// What train/ includes of LibTorch, precompiled once for the room.
#pragma once

#include <torch/torch.h>

#include "mhla/ops/torch.h"
