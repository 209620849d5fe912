"""The build backend of the Python package (pyproject.toml): scikit-build-core, after a look at what is installed.

The library is compiled for the torch that is there. In pip's isolated environment there is none, and any that pip put there
would be another one than the user's: such a build stops here, with the line to type instead.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

TYPE_THIS = "pip install scikit-build-core ninja && pip install --no-build-isolation ."


def stop(reason: str) -> NoReturn:
    print(f"mhla: {reason}", file=sys.stderr)
    raise SystemExit(1)


def expect_torch() -> None:
    """Torch and scikit-build-core, or one line that says what to type."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        if any("build-env-" in path for path in (sys.prefix, *sys.path)):  # as pip and build call them
            stop(f"the library is compiled for the torch you have, which an isolated build cannot see; type: {TYPE_THIS}")
        stop(f"torch cannot be imported here ({error}), and the library is compiled for it; install torch, then type: {TYPE_THIS}")
    try:
        import scikit_build_core.build  # noqa: F401
    except ImportError:
        stop(f"scikit-build-core is missing; type: {TYPE_THIS}")


def backend() -> Any:
    import scikit_build_core.build as build

    return build


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    expect_torch()
    return backend().get_requires_for_build_wheel(config_settings)  # cmake and ninja where the system has none


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(folder: str, config_settings: Any = None) -> str:
    expect_torch()
    return backend().prepare_metadata_for_build_wheel(folder, config_settings)


def prepare_metadata_for_build_editable(folder: str, config_settings: Any = None) -> str:
    expect_torch()
    return backend().prepare_metadata_for_build_editable(folder, config_settings)


def build_wheel(folder: str, config_settings: Any = None, metadata: str | None = None) -> str:
    expect_torch()
    return backend().build_wheel(folder, config_settings, metadata)


def build_editable(folder: str, config_settings: Any = None, metadata: str | None = None) -> str:
    expect_torch()
    return backend().build_editable(folder, config_settings, metadata)


def build_sdist(folder: str, config_settings: Any = None) -> str:
    os.environ["MHLA_SDIST"] = "1"  # for dynamic_metadata
    return backend().build_sdist(folder, config_settings)


def dynamic_metadata(field: str, settings: Any = None) -> str:
    """The version: of CMakeLists.txt, with the torch of a wheel as its local part ("0.1.0+torch2.15.cpu"). An index wants
    a wheel that was built from an archive to have the version of the archive: those have none."""
    import re
    from pathlib import Path

    if field != "version":
        stop(f"pyproject.toml asks for {field}, expected version")
    found = re.search(r"project\(mhla VERSION ([0-9.]+)", Path("CMakeLists.txt").read_text())
    if found is None:
        stop("CMakeLists.txt has no line 'project(mhla VERSION ...'")
    if "MHLA_SDIST" in os.environ or Path("PKG-INFO").is_file():
        return found[1]
    return f"{found[1]}+{local_version()}"


def has_nvcc() -> bool:
    """Whether CMake will find a CUDA compiler (cmake/cuda.cmake)."""
    import shutil

    homes = [os.environ[name] for name in ("CUDACXX", "CUDA_HOME") if os.environ.get(name)]
    places = [*homes, *(f"{home}/bin/nvcc" for home in homes), "/usr/local/cuda/bin/nvcc"]
    return shutil.which("nvcc") is not None or any(os.path.isfile(place) for place in places)


def local_version() -> str:
    """Which torch, and whether CUDA kernels will be compiled (cmake/python.cmake): "torch2.15.cpu"."""
    import torch

    release = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    asked = os.environ.get("MHLA_CUDA", "")
    wanted = asked.lower() in ("1", "on", "yes", "true") if asked else os.path.exists("/dev/nvidia0") and has_nvcc()
    return f"torch{release}.{'cu' + torch.version.cuda.replace('.', '') if wanted and torch.version.cuda else 'cpu'}"
