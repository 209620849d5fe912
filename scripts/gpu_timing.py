"""How the comparisons in PyTorch are timed: the median of whole steps, each of which waits for the card at its end."""

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
