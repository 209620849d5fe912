"""The package itself: it loads quickly, refuses a library of another torch, and its examples run."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples(example):
    runpy.run_path(str(example), run_name="__main__")


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_import_is_quick():
    """In processor time: the machine may be busy."""
    code = "import torch, time; begin = time.process_time(); import mhla; print(time.process_time() - begin)"
    fastest = min(float(python(code).stdout) for _ in range(3))
    assert fastest < 0.2


def test_the_flop_counter_is_not_imported_and_counts():
    code = """if True:
        import sys, mhla, torch
        assert hasattr(torch, "compile") is False or "triton" not in sys.modules
        try:
            from torch.utils.flop_counter import FlopCounterMode, register_flop_formula
        except ImportError:
            raise SystemExit(print("none"))
        q = torch.ones(1, 16, 2, 4)
        with FlopCounterMode(display=False) as counter:
            mhla.attention(q, q, q, torch.ones(2, 2), block_size=8)
        print(counter.get_total_flops())"""
    said = python(code)
    assert said.stdout.strip() in ("none", str(2 * (2 * 2 * 16 * 16) + 2 * 2 * 4 * 16)), said.stderr


def test_the_profiler_names_every_operator():
    import torch
    from torch.profiler import ProfilerActivity, profile

    import mhla

    lm, image = mhla.nn.MHLA.lm(16, 2, chunk=8, max_tokens=32), mhla.nn.MHLA(16, 2, grid=(4, 4), blocks=(2, 2), rope=True)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        (lm(torch.randn(1, 16, 16)).sum() + image(torch.randn(1, 16, 16)).sum()).backward()
    names = {event.key for event in seen.key_averages() if event.key.startswith("mhla::")}
    wanted = {f"mhla::{name}{pass_}" for name in ("bidirectional", "chunkwise", "norm", "rope") for pass_ in ("", "_backward")}
    assert names >= wanted, wanted - names


def test_the_choice_of_a_candidate_is_logged():
    said = python(USE.format(""), MHLA_LOG="1")
    assert "mhla: bidirectional_forward: " in said.stderr and "runs" in said.stderr
    assert said.stderr.count("\n") == 1 and python(USE.format(""), MHLA_LOG="0").stderr == ""


@pytest.mark.parametrize("notes, said", [
    (["9.9 0.1.0 cpu new"], "this package has libraries for torch 9.9 (cpu), but this Python has torch"),
    (["{here} 0.1.0 cpu {other}"], "C++ ABI"),
    (["9.9 0.1.0 cpu new", "{here} 0.1.0 cpu {abi}", "{here} 0.1.0 cuda {other}"], ""),
    ([], "the package has no library"),
])  # fmt: skip
def test_the_library_of_this_torch_is_picked(tmp_path, notes, said):
    import torch

    package = tmp_path / "mhla"
    shutil.copytree(Path(__file__).parents[1] / "mhla", package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    here = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    abi = "new" if getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True) else "old"
    library = Path(os.environ["MHLA_LIBRARY"])
    for i, note in enumerate(notes):
        folder = package / "lib" / f"torch{i}"
        folder.mkdir(parents=True)
        note = note.format(here=here, abi=abi, other="old" if abi == "new" else "new")
        (folder / "libmhla_torch.built_for").write_text(note.replace(" ", "\n"))
        fits = note.split()[0] == here and note.split()[3] == abi
        (folder / library.name).symlink_to(library) if fits else (folder / library.name).write_bytes(b"no library")
    got = python(USE.format(""), PYTHONPATH=str(tmp_path), MHLA_LIBRARY="")
    assert said in got.stderr and (said != "") == (got.returncode != 0), got.stderr


def test_the_root_of_the_repository_is_not_the_package(tmp_path):
    """The folder of the C++ sources is called mhla, too."""
    root = Path(__file__).parents[2]
    code = "import mhla, mhla.nn; print(mhla.__file__)"
    installed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert installed.stdout.strip() == str(root / "python/mhla/__init__.py"), installed.stderr
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env=alone)
    assert found.stdout.strip().endswith("mhla/__init__.py") and not found.stdout.startswith(str(root / "mhla")), found.stderr


USE = "import torch, mhla; q = torch.ones(1, 8, 2, 4); print(mhla.attention(q, q, q, torch.ones(1, 1), block_size=8{}).sum().item())"


def test_a_library_of_another_torch_is_refused(tmp_path):
    (tmp_path / "libmhla_torch.so").write_bytes(b"no library")
    (tmp_path / "libmhla_torch.built_for").write_text("9.9\n")
    said = python(USE.format(""), MHLA_LIBRARY=str(tmp_path / "libmhla_torch.so")).stderr
    assert "was built for torch 9.9, but this Python has torch" in said


def test_a_missing_library_is_named_when_it_is_used(tmp_path):
    missing = str(tmp_path / "nothing.so")
    said = python("import mhla; mhla.init_mix([2]); print('imported'); mhla.nn.MHLA(8, 2, block_size=4)", MHLA_LIBRARY=missing)
    assert said.stdout == "imported\n"
    assert "ImportError: mhla: MHLA_LIBRARY has no" in said.stderr and 'backend="torch"' in said.stderr
    for use in ("mhla.get_num_threads()", "mhla.open_run('x')", "mhla.StreamingState(mhla.init_mix([2]), heads=1, key_size=1, value_size=1)"):
        assert 'backend="torch"' in python(f"import mhla; {use}", MHLA_LIBRARY=missing).stderr
    assert "ImportError" in python(USE.format(""), MHLA_LIBRARY=missing).stderr


def test_plain_torch_needs_no_library(tmp_path):
    missing = str(tmp_path / "nothing.so")
    asked = python(USE.format(", backend='torch'"), MHLA_LIBRARY=missing)
    everywhere = python(USE.format(""), MHLA_LIBRARY=missing, MHLA_BACKEND="torch")
    assert asked.stdout == everywhere.stdout != "", asked.stderr + everywhere.stderr
    assert abs(float(asked.stdout) - 64) < 1e-3


def test_help_names_what_is_public(tmp_path):
    """An installed package: its library is found, and help() does not take it for a module."""
    package = tmp_path / "mhla"
    shutil.copytree(Path(__file__).parents[1] / "mhla", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "lib" / "torch").mkdir(parents=True)
    library = Path(os.environ["MHLA_LIBRARY"])
    for file in (library, library.with_suffix(".built_for")):
        (package / "lib" / "torch" / file.name).symlink_to(file)
    code = "import mhla, pydoc; mhla.get_num_threads(); print('libmhla' in pydoc.plain(pydoc.render_doc(mhla)), sorted(mhla.__all__) == mhla.__all__)"
    said = python(code, PYTHONPATH=str(tmp_path), MHLA_LIBRARY="")
    assert said.stdout.split() == ["False", "True"], said.stderr


@pytest.mark.parametrize("path, said", [
    ("/tmp/pip-build-env-x/overlay", "which an isolated build cannot see; type: pip install scikit-build-core ninja && pip install --no-build-isolation ."),
    ("/tmp", "torch cannot be imported here (No module named 'torch')"),
])  # fmt: skip
def test_a_build_without_torch_stops_with_one_line(path, said):
    folder = Path(__file__).parents[2] / "cmake"
    code = f"import sys; sys.path += [{str(folder)!r}, {path!r}]; import mhla_build; mhla_build.get_requires_for_build_wheel()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("mhla: ") and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
