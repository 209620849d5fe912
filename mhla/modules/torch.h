// What modules/ includes of LibTorch, precompiled once for the room.
#pragma once

#include <torch/torch.h>
