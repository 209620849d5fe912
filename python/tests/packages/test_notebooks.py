"""The notebooks: every cell runs, in order, in a folder of its own."""

import json
from pathlib import Path

import pytest

pytest.importorskip("timm"), pytest.importorskip("diffusers"), pytest.importorskip("transformers")
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown" and not any(cell.get("outputs") for cell in cells)
    variables = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), variables)


def test_there_are_four():
    assert len(NOTEBOOKS) == 4
