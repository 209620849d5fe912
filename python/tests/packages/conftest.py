"""Tests with the real packages (docs/migrating.md has their versions): `make test-python`. The package runs as plain torch, or
with MHLA_TEST_BACKEND=kernels with the compiled library."""

import os
import sys
from pathlib import Path

import pytest
import torch

import mhla

sys.path.insert(0, str(Path(__file__).parents[1]))  # plain.py


@pytest.fixture(autouse=True)
def backend():
    torch.manual_seed(0)
    mhla.set_backend(os.environ.get("MHLA_TEST_BACKEND", "torch"))
    yield
    mhla.set_backend(None)
