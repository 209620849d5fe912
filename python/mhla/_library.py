"""Finds and loads libmhla_torch.so, which registers ``torch.ops.mhla`` and ``torch.classes.mhla``.

A package can hold libraries for several versions of torch, each in a folder of its own with a note beside it. The one for
the torch at hand is loaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

NAME = "libmhla_torch.so"
BUILD = "pip install --no-build-isolation ."


class Note(NamedTuple):
    """What stands beside a library (python/CMakeLists.txt): four lines, of which old libraries have fewer."""

    torch: str = ""  # "2.15"
    version: str = ""  # of mhla
    device: str = "cpu"  # "cpu", or "cuda" where it has CUDA kernels
    abi: str = ""  # "new" or "old": of std::string

    @property
    def what(self) -> str:
        return f"torch {self.torch}" + (" with the old C++ ABI" if self.abi == "old" else "")


def _note(library: Path) -> Note:
    file = library.with_name("libmhla_torch.built_for")
    return Note(*(file.read_text().split() if file.is_file() else [])[:4])


def _here() -> Note:
    """The torch at hand, in the words of a note."""
    release = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    new = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)
    return Note(release, "", "cpu" if torch.version.cuda is None else "cuda", "new" if new else "old")


def _fits(note: Note, here: Note) -> bool:
    """A library without CUDA runs on the CPU of any torch of its version."""
    return (not note.torch or note.torch == here.torch) and (not note.abi or note.abi == here.abi) and (
        note.device == "cpu" or here.device == "cuda"
    )  # fmt: skip


def _packaged() -> list[Path]:
    """The libraries of the package, in a folder that help() does not take for modules: of an installed one, of an editable
    one (whose library is among the installed files), and what `make build` left in the repository."""
    import mhla

    folders = [Path(folder) / "lib" for folder in mhla.__path__]
    found = sorted(path for folder in folders for path in folder.glob(f"*/{NAME}"))
    root = Path(__file__).parents[2]
    built = root / "build/release/lib" / NAME
    if not found and built.is_file() and (root / "pyproject.toml").is_file():
        found = [built]
    return found


def _path() -> Path:
    """The library named by MHLA_LIBRARY, or the one of the package that fits this torch."""
    here = _here()
    named = os.environ.get("MHLA_LIBRARY")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ImportError(f"mhla: MHLA_LIBRARY has no {path}: build it with `{BUILD}` beside the torch it is for")
        note = _note(path)
        if not _fits(note, here):
            raise ImportError(
                f"mhla: {path} was built for {note.what}, but this Python has torch {torch.__version__} "
                f"({here.abi} C++ ABI, {here.device}): build it again with `{BUILD}`"
            )
        return path
    candidates = [(_note(path), path) for path in _packaged()]
    if not candidates:
        raise ImportError(f"mhla: the package has no library: build it with `{BUILD}` beside the torch it is for")
    fitting = [(note.device == here.device, path) for note, path in candidates if _fits(note, here)]
    if not fitting:
        versions = ", ".join(f"{note.what} ({note.device})" for note, _ in candidates)
        raise ImportError(
            f"mhla: this package has libraries for {versions}, but this Python has torch {torch.__version__} "
            f"({here.abi} C++ ABI, {here.device}): install one of those, or build mhla from source with `{BUILD}`"
        )
    return max(fitting)[1]


def version() -> str:
    """The version of mhla that the library was built from; without one, of the installed package."""
    try:
        return _note(_path()).version or "unknown"
    except ImportError:
        from importlib import metadata

        try:
            return metadata.version("mhla").partition("+")[0]
        except metadata.PackageNotFoundError:
            return "unknown"


def load() -> None:
    """Loads the library once."""
    if getattr(torch.ops.mhla, "bidirectional", None) is not None:
        return
    path = _path()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(f"mhla: {path} could not be loaded: {error}") from error
