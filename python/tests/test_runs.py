"""Folders of runs, made here by hand."""

import json

import pytest

import mhla


def test_a_run_has_task_options_and_checkpoints(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps({"task": "lm", "ema": 0.5}))
    for step in (200, 50):
        (tmp_path / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    (tmp_path / "model.safetensors").write_bytes(b"")
    run = mhla.open_run(tmp_path)
    assert run.task == "lm"
    assert run.options()["ema"] == 0.5
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [50, 200]
    assert run.checkpoints()[0].path == tmp_path / "checkpoints" / "step-00000050"
    weights = run.weights()
    assert (weights.file, weights.prefix, weights.warnings) == (tmp_path / "model.safetensors", "", [])
    with pytest.raises(RuntimeError, match="--weights is best"):
        run.weights("best")


def test_an_older_run_has_a_task(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps({"augment": "none"}))
    assert mhla.open_run(tmp_path).task == "classify"


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="has no train.json, expected the folder of a training"):
        mhla.open_run(tmp_path)
