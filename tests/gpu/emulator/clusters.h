// Blocks of a cluster (fibers.cpp), which run together: where a block stands in it, and their barrier in two halves.
#pragma once

namespace emulator {

int cluster_rank();
void cluster_arrive();
void cluster_wait();

}  // namespace emulator
