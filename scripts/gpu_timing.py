"""How the comparisons in PyTorch are run: the median of whole steps, each of which waits for the card at its end, and steps as
CUDA graphs."""

import statistics
import time


def median_ms(step, seconds: float) -> float:
    for _ in range(8):
        step()
    times, end = [], time.time() + seconds
    while time.time() < end or len(times) < 5:
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


class Recorded:
    """A step that is recorded as one CUDA graph after its first calls, which set up what a recording cannot: workspaces, states
    of the optimiser, compiled code. Its inputs must stay at the same addresses."""

    def __init__(self, step, warmup: int = 3) -> None:
        import torch

        self.step, self.left, self.torch = step, warmup, torch
        self.graph, self.side = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def __call__(self) -> None:
        cuda = self.torch.cuda
        if self.left > 0:
            self.side.wait_stream(cuda.current_stream())
            with cuda.stream(self.side):
                self.step()
            cuda.current_stream().wait_stream(self.side)
        elif self.left == 0:
            with cuda.graph(self.graph):
                self.step()
        if self.left <= 0:
            self.graph.replay()
        self.left -= 1
