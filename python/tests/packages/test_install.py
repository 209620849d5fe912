"""The source archive has what compiles the library, and nothing that was built here; the docs name the versions tested."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_archive_has_sources_only(tmp_path):
    pytest.importorskip("scikit_build_core")
    code = f"import sys; sys.path.insert(0, 'cmake'); import mhla_build; mhla_build.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("mhla-*.tar.gz")
    names = [name.partition("/")[2] for name in tarfile.open(archive).getnames()]
    assert {"CMakeLists.txt", "pyproject.toml", "cmake/mhla_build.py", "python/mhla/__init__.py", "python/CMakeLists.txt"} <= set(names)
    folders = {name.partition("/")[0] for name in names}
    assert not folders & {"apps", "build", "carry", "docs", "examples", "peers", "recipes", "scripts", "tests"}
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc", ".safetensors", "_test.cpp")) or name.startswith("python/tests")]


def test_versions_are_written_down():
    pinned = re.findall(r"^(\w+)==(\S+)$", (Path(__file__).parent / "requirements.txt").read_text(), re.MULTILINE)
    text = " ".join((ROOT / "docs/migrating.md").read_text().split())
    assert len(pinned) > 8 and [f"{name} {version}" for name, version in pinned if f"{name} {version}" not in text] == []
