"""What :class:`mhla.nn.MHLA` refuses, by the name of the option, before a module is made."""

from __future__ import annotations

from collections.abc import Sequence

from . import feature_maps


def check_options(
    *,
    dim: int,
    num_heads: int,
    kv_heads: int,
    head_dim: int | None,
    value_dim: int | None,
    block_size: int | None,
    grid: Sequence[int] | None,
    blocks: Sequence[int] | None,
    causal: bool,
    chunk: int,
    max_tokens: int,
    short_conv: int,
    feature_map: str,
    gate: str | None,
    lepe: int,
    lepe_inside_gate: bool,
    mix_official: bool,
    mix_range: tuple[float, float] | None,
    official_causal_clamp: bool,
    beyond_mix: str,
    extra_tokens: int,
    normalizer: str | None,
) -> None:
    """Raises RuntimeError with the option, its value and what was expected."""
    for name, axes in (("grid", grid), ("blocks", blocks)):
        if axes is not None and (isinstance(axes, (int, float, str)) or len(axes) not in (2, 3)):
            raise RuntimeError(f"MHLA: {name} is {axes!r}, expected sizes of 2 or 3 axes, such as (16, 16)")
    if extra_tokens < 0 or (extra_tokens and (causal or normalizer == "official")):
        where = "in a causal layer" if causal else "with normalizer official" if extra_tokens > 0 else ""
        raise RuntimeError(f"MHLA: extra_tokens is {extra_tokens} {where}, expected 0, or tokens before a sequence or grid")
    given = [
        name
        for name, on in (("block_size", block_size is not None), ("grid", grid is not None), ("causal", causal))
        if on
    ]
    if len(given) != 1 or (grid is None) != (blocks is None):
        raise RuntimeError(
            f"MHLA: the layout is {given or 'not given'}, expected one of block_size, grid with blocks, causal"
        )
    sizes = {"dim": dim, "num_heads": num_heads, "block_size": block_size, "chunk": chunk, "max_tokens": max_tokens,
             "head_dim": head_dim, "value_dim": value_dim}  # fmt: skip
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise RuntimeError(f"MHLA: {name} is {size}, expected at least 1")
    if beyond_mix not in ("error", "extend"):
        raise RuntimeError(f"MHLA: beyond_mix is '{beyond_mix}', expected error or extend")
    if not causal and (beyond_mix != "error" or official_causal_clamp):
        name = "official_causal_clamp" if official_causal_clamp else f"beyond_mix {beyond_mix}"
        raise RuntimeError(f"MHLA: {name} in a layer that is not causal, expected causal=True")
    if causal and mix_official:
        raise RuntimeError("MHLA: mix_official in a causal layer, expected block_size, or grid and blocks")
    if lepe_inside_gate and not lepe:
        raise RuntimeError("MHLA: lepe_inside_gate without lepe, expected its kernel size")
    if mix_range is not None and not mix_range[0] <= mix_range[1]:
        raise RuntimeError(f"MHLA: mix_range is {tuple(mix_range)}, expected the lower end first")
    if dim % num_heads and (head_dim is None or value_dim is None):
        raise RuntimeError(f"MHLA: dim is {dim}, expected a multiple of num_heads = {num_heads}")
    if kv_heads < 1 or num_heads % kv_heads:
        raise RuntimeError(f"MHLA: num_kv_heads is {kv_heads}, expected a divisor of num_heads = {num_heads}")
    if feature_map not in feature_maps.NAMES:
        raise RuntimeError(f"MHLA: feature_map is '{feature_map}', expected one of {', '.join(feature_maps.NAMES)}")
    if short_conv < 0 or (short_conv and not causal):
        raise RuntimeError(f"MHLA: short_conv is {short_conv}, expected 0, or taps of a causal layer")
    if gate not in (None, "silu", "linear"):
        raise RuntimeError(f"MHLA: gate is '{gate}', expected silu, linear or None")
    if lepe and (grid is None or lepe % 2 == 0):
        raise RuntimeError(f"MHLA: lepe is {lepe}, expected an odd kernel size on a 2D or 3D grid")
