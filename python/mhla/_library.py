"""Finds and loads libmhla_torch.so, which registers ``torch.ops.mhla`` and ``torch.classes.mhla``."""

from __future__ import annotations

import os
from pathlib import Path

import torch

NAME = "libmhla_torch.so"


def _path() -> Path:
    """The library named by MHLA_LIBRARY, or the one of the package, in a folder that help() does not take for modules."""
    named = os.environ.get("MHLA_LIBRARY")
    path = Path(named) if named else Path(__file__).with_name("lib") / NAME
    if not path.is_file():
        where = "MHLA_LIBRARY" if named else "the package"
        raise ImportError(
            f"mhla: {where} has no {path}: build it with `pip install --no-build-isolation .` beside the torch it is for"
        )
    return path


def _note(path: Path) -> tuple[str, str]:
    """What is written beside the library: the torch it was built for, and the version of mhla."""
    note = path.with_name("libmhla_torch.built_for")
    lines = note.read_text().split() if note.is_file() else []
    return (lines + ["", ""])[0], (lines + ["", ""])[1]


def version() -> str:
    """The version of mhla that the library was built from."""
    try:
        return _note(_path())[1] or "unknown"
    except ImportError:
        return "unknown"


def _check_torch(path: Path) -> None:
    """A library built for another torch would fail with undefined symbols: say so first."""
    built_for, _ = _note(path)
    here = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    if built_for and built_for != here:
        raise ImportError(
            f"mhla: {path} was built for torch {built_for}, but this Python has torch {torch.__version__}: "
            "build it again with `pip install --no-build-isolation .`"
        )


def load() -> None:
    """Loads the library once."""
    if getattr(torch.ops.mhla, "bidirectional", None) is not None:
        return
    path = _path()
    _check_torch(path)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(f"mhla: {path} could not be loaded: {error}") from error
