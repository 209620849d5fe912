"""The layer exists twice, ``mhla::MhlaAttention`` and :class:`mhla.nn.MHLA`: the same options with the same defaults."""

import inspect
import re
from pathlib import Path

import pytest

from mhla.nn import MHLA

ROOT = Path(__file__).parents[2]

# Python's name of an option: the name in C++, where it is another one.
RENAMED = {
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "feature_map": "features",
    "mix": "mix_init",
    "mix_official": "mix_init.official",
    "mix_exp_sigma": "mix_init.exp_sigma",
    "mix_local_threshold": "mix_init.local_threshold",
    "mix_range": "constraint",
}
LAYOUT = {"block_size", "grid", "blocks"}  # in C++ a Layout
ONLY_PYTHON = {"self", "extra_tokens", "backend", "device", "dtype"}
ONLY_CPP = {
    "layout",
    "causal_init",  # mix of a causal layer
    "maybe_rope_cache",  # shared by the layers of a model
    "lepe_identity",  # how DiT starts: Python loads weights
    "mix_init.transform",  # mix
}


def members(header: str, struct: str) -> dict[str, str]:
    """The fields of a struct with their defaults as they are written; '' where there is none."""
    source = (ROOT / header).read_text(encoding="utf-8")
    body = re.search(rf"struct {struct} \{{\n(.*?)\n\}};", source, re.DOTALL)
    assert body, f"{header} has no struct {struct}"
    found = {}
    for statement in re.sub(r"//[^\n]*", "", body[1]).split(";"):
        text = " ".join(statement.split())
        if text in {"", "}"} or text.startswith(("static", "friend", "bool operator")) or ") const" in text:
            continue
        declaration = re.fullmatch(r"(?:const )?[\w:]+(?:<[^=]*?>)? (.+)", text)
        assert declaration, f"{header}: {text!r} is not understood by this test"
        for part in re.split(r", (?=\w+(?: =|$|,))", declaration[1]):
            name, _, default = part.partition(" = ")
            found[name] = default
    return found


@pytest.fixture(scope="module")
def cpp() -> dict[str, str]:
    options = members("mhla/modules/mhla_attention.h", "MhlaAttentionOptions")
    for name, default in members("mhla/kernels/mixing/mixing.h", "MixInit").items():
        options[f"mix_init.{name}"] = default
    return options


@pytest.fixture(scope="module")
def python() -> dict[str, object]:
    return {name: parameter.default for name, parameter in inspect.signature(MHLA.__init__).parameters.items()}


def test_the_options_have_the_same_names(cpp, python):
    ours = {RENAMED.get(name, name) for name in python if name not in ONLY_PYTHON | LAYOUT}
    assert ours == set(cpp) - ONLY_CPP


def test_the_options_have_the_same_defaults(cpp, python):
    words = {"fused(FeatureMap::kReluEps)": "relu_eps", "BeyondMix::kError": "error", "Gate::kNone": None, "": None}
    for name, default in python.items():
        if name in ONLY_PYTHON | LAYOUT or default is inspect.Parameter.empty:
            continue
        written = cpp[RENAMED.get(name, name)]
        if name == "mix_range":
            limits = members("mhla/kernels/mixing/mixing.h", "MixConstraint")
            assert written == "MixConstraint{}"
            assert default == (float(limits["lo"]), float(limits["hi"]))
        elif default is None and written == "0":  # from dim
            assert name in {"num_kv_heads", "head_dim", "value_dim"}
        elif isinstance(default, bool):
            assert written == str(default).lower(), name
        elif isinstance(default, (int, float)):
            assert float(written) == default, name
        else:
            assert words[written] == default, name
