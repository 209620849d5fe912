"""Names that arguments may have, for type checkers and for messages."""

from __future__ import annotations

from typing import Literal

Backend = Literal["kernels", "torch"]
FeatureMap = Literal["relu_eps", "relu", "elu1", "identity"]
LayerFeatureMap = Literal["relu_eps", "relu", "elu1", "identity", "t2r", "hedgehog", "hadamard", "dpfp"]
Normalizer = Literal["paper", "none", "official"]
BeyondMix = Literal["error", "extend"]
Gate = Literal["silu", "linear"]
MixTransform = Literal["linear", "cos", "exp", "gaussian", "local", "uniform"]
CausalInit = Literal["prefix", "linear", "exp"]
