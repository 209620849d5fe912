#!/usr/bin/env python3
"""Turns a .pth of published weights into a .safetensors beside it, for programs that do not unpickle.

    python3 scripts/pth_to_safetensors.py Wan2.1_VAE.pth models_t5_umt5-xxl-enc-bf16.pth

Needs torch and safetensors. Only tensors are read (weights_only): nothing in the file is run.
"""

import argparse
import pathlib
import sys

import safetensors.torch
import torch


def convert(path: pathlib.Path) -> pathlib.Path:
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    state = state.get("state_dict", state)
    wrong = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        sys.exit(f"{path}: '{wrong[0]}' is no tensor, expected a dictionary of tensors")
    out = path.with_suffix(".safetensors")
    # Tensors that share memory are written twice.
    safetensors.torch.save_file({name: value.contiguous().clone() for name, value in state.items()}, out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    for path in parser.parse_args().files:
        print(convert(path))


if __name__ == "__main__":
    main()
