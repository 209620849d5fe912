#!/usr/bin/env python3
"""context_bytes.py: the table of docs/scaling.md on context parallelism, from its formulas: MiB that one process receives
for one attention layer, forward and backward. Keys, values and tokens in bf16, summaries in f32."""

from typing import NamedTuple

MIB = 2**20


class Shape(NamedTuple):
    name: str
    N: int
    M: int
    H: int
    D: int
    E: int
    normalized: bool


SHAPES = [
    Shape("`wan_480p`", 31500, 105, 12, 128, 128, True),
    Shape("`lm_65536`", 65536, 256, 4, 128, 256, False),
    Shape("1,048,576 tokens, chunk 1024", 2**20, 1024, 4, 128, 256, False),
    Shape("1,048,576 tokens, chunk 4096", 2**20, 256, 4, 128, 256, False),
]


def summaries(s: Shape, P: int) -> float:
    return 2 * (1 - 1 / P) * s.M * s.H * (s.D * s.E + (s.D if s.normalized else 0)) * 4


def heads(s: Shape, P: int) -> float:
    return 2 * (1 - 1 / P) * s.N / P * 2 * s.H * (s.D + s.E) * 2


def ring(s: Shape, P: int) -> float:
    return 3 * (1 - 1 / P) * s.N * s.H * (s.D + s.E) * 2


def main() -> None:
    print("| shape | processes | summaries | heads | ring attention |")
    print("|---|---|---|---|---|")
    for s in SHAPES:
        for P in (4, 16):
            by_heads = f"{heads(s, P) / MIB:,.0f}" if s.H % P == 0 else f"not possible: {s.H} heads"
            print(f"| {s.name} | {P} | {summaries(s, P) / MIB:,.0f} | {by_heads} | {ring(s, P) / MIB:,.0f} |")


if __name__ == "__main__":
    main()
