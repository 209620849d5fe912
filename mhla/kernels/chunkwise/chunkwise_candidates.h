// The implementations of the causal form, and the names the list knows. Only the list and tests
// include this; callers use chunkwise.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/problem.h"

namespace mhla {

// Names in the order of the lists: fastest first, ref last. A candidate may have one pass only.
std::vector<std::string_view> chunkwise_candidates();
std::vector<std::string_view> chunkwise_backward_candidates();
bool chunkwise_on_device(std::string_view candidate);  // whether it works on the memory of a CUDA device

// Each takes a checked problem with at least one token. fit: empty, or the reason it steps aside.
// sm90: Hopper only. sm80: tensor cores of any card from compute capability 8.0. cuda: every problem in the memory of
// a CUDA device, but f64. In a build without CUDA all
// step aside saying so, and their passes throw (chunkwise_cuda_off.cpp).
std::string chunkwise_fit_sm90(const Problem& problem);
void chunkwise_forward_sm90(const Problem& problem, Workspace& workspace, Executor& executor);
void chunkwise_backward_sm90(const Problem& problem, Workspace& workspace, Executor& executor);

std::string chunkwise_fit_sm80(const Problem& problem);
void chunkwise_forward_sm80(const Problem& problem, Workspace& workspace, Executor& executor);
void chunkwise_backward_sm80(const Problem& problem, Workspace& workspace, Executor& executor);

std::string chunkwise_fit_cuda(const Problem& problem);
void chunkwise_forward_cuda(const Problem& problem, Workspace& workspace, Executor& executor);
void chunkwise_backward_cuda(const Problem& problem, Workspace& workspace, Executor& executor);

std::string chunkwise_fit_simd(const Problem& problem);
void chunkwise_forward_simd(const Problem& problem, Workspace& workspace, Executor& executor);
void chunkwise_backward_simd(const Problem& problem, Workspace& workspace, Executor& executor);

void chunkwise_forward_ref(const Problem& problem, Workspace& workspace, Executor& executor);
void chunkwise_backward_ref(const Problem& problem, Workspace& workspace, Executor& executor);

}  // namespace mhla
