"""The package itself: it loads quickly, refuses a library of another torch, and its examples run."""

import os
import runpy
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
    assert fastest < 1.0


def test_a_library_of_another_torch_is_refused(tmp_path):
    (tmp_path / "libmhla_torch.so").write_bytes(b"no library")
    (tmp_path / "libmhla_torch.built_for").write_text("9.9\n")
    said = python("import mhla", MHLA_LIBRARY=str(tmp_path / "libmhla_torch.so")).stderr
    assert "was built for torch 9.9, but this Python has torch" in said


def test_a_missing_library_is_named(tmp_path):
    said = python("import mhla", MHLA_LIBRARY=str(tmp_path / "nothing.so")).stderr
    assert "ImportError: mhla: MHLA_LIBRARY has no" in said
