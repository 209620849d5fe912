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
    code = "import torch, time; begin = time.time(); import mhla; print(time.time() - begin)"
    fastest = min(float(python(code).stdout) for _ in range(3))
    assert fastest < 0.2


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
    (package / "lib").mkdir()
    library = Path(os.environ["MHLA_LIBRARY"])
    for file in (library, library.with_suffix(".built_for")):
        (package / "lib" / file.name).symlink_to(file)
    code = "import mhla, pydoc; mhla.get_num_threads(); print('libmhla' in pydoc.plain(pydoc.render_doc(mhla)), sorted(mhla.__all__) == mhla.__all__)"
    said = python(code, PYTHONPATH=str(tmp_path), MHLA_LIBRARY="")
    assert said.stdout.split() == ["False", "True"], said.stderr
