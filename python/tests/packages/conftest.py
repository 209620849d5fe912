"""Tests with the real packages (docs/migrating.md has their versions): `make test-python`. The package runs as plain torch."""

import sys
from pathlib import Path

import pytest
import torch

import mhla

sys.path.insert(0, str(Path(__file__).parents[1]))  # plain.py


@pytest.fixture(autouse=True)
def plain_torch():
    torch.manual_seed(0)
    mhla.set_backend("torch")
    yield
    mhla.set_backend(None)
