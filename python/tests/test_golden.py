"""The published code's numbers, outputs and all gradients, through the package."""

import golden
import pytest
import torch

import mhla
from mhla import convert
from mhla.nn import MHLA

LIMIT = 1e-4


@pytest.fixture(autouse=True, params=["kernels", "torch"])
def backend(request):
    mhla.set_backend(request.param)
    yield
    mhla.set_backend(None)


def collect(file):
    return [pytest.param(config, tensors, id=name) for name, config, tensors in golden.cases(file)]


def judge(module, layer, family, case, limit=LIMIT):
    """Output and gradients of ``module``, which holds ``layer``, against the case."""
    layer.load_state_dict(convert.from_published(golden.part(case, "param."), family))
    x = case["in.x"].clone().requires_grad_()
    out = module(x)
    out.backward(case["dout"])
    assert golden.error(out, case["out"]) <= limit
    assert golden.error(x.grad, case["grad.in.x"]) <= limit
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    published = convert.to_published(gradients, family, layer.widths)
    expected = golden.part(case, "grad.param.")
    assert set(published) == set(expected)
    for name, want in expected.items():
        assert golden.error(published[name], want) <= limit, name


@pytest.mark.parametrize("config, case", collect("causal_op"))
def test_causal_operator(config, case):
    inputs = {name: case["in." + name].clone().requires_grad_() for name in ("q", "k", "v", "mix")}
    out = mhla.attention(**inputs, causal=True, chunk=config["chunk"], feature_map="identity")
    out.backward(case["dout"])
    assert golden.error(out, case["out"]) <= LIMIT
    for name, x in inputs.items():
        assert golden.error(x.grad, case["grad.in." + name]) <= LIMIT, name


@pytest.mark.parametrize("config, case", collect("dit_module"))
def test_dit(config, case):
    layer = golden.window_layer(MHLA.dit, config, config["block_size"])
    assert golden.error(layer.mix, case["init.mixing"]) <= 1e-6
    judge(golden.BlockOrder(layer), layer, "image", case)


@pytest.mark.parametrize(
    "config, case",
    [p for p in collect("classification") if "window_size" in p.values[0] and "patch_size" not in p.values[0]],
)
def test_image(config, case):
    layer = golden.window_layer(MHLA.image, config, config["window_size"])
    judge(golden.BlockOrder(layer), layer, "image", case)


@pytest.mark.parametrize("config, case", [p for p in collect("classification") if set(p.values[0]) == {"dim", "heads"}])
def test_linear_attention(config, case):
    tokens = case["in.x"].shape[1]
    layer = MHLA(config["dim"], config["heads"], block_size=tokens, max_tokens=tokens, qk_norm=True, qk_norm_eps=1e-6,
                 feature_map="relu", learn_mix=False)  # fmt: skip
    weights = convert.from_published(golden.part(case, "param."), "linear")
    layer.load_state_dict({**weights, "mix": layer.mix})
    assert layer.mix.tolist() == [[1.0]]
    x = case["in.x"].clone().requires_grad_()
    out = layer(x)
    out.backward(case["dout"])
    assert golden.error(out, case["out"]) <= LIMIT
    assert golden.error(x.grad, case["grad.in.x"]) <= LIMIT
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters() if name != "mix"}
    for name, got in convert.to_published(gradients, "linear", layer.widths).items():
        assert golden.error(got, case["grad.param." + name]) <= LIMIT, name


@pytest.mark.parametrize("config, case", collect("video_module"))
def test_video(config, case):
    layer = MHLA.video(config["dim"], config["num_heads"], config["grid"], config["block_layout"], official=True,
                       gated=config["is_gated"], lepe=3 if config["is_lepe"] else 0, mix=config["transform"],
                       normalizer="official" if config["normalize_out"] else "none")  # fmt: skip
    assert golden.error(layer.mix, case["init.mixing"]) <= 1e-6
    judge(layer, layer, "video", case)


@pytest.mark.parametrize("config, case", collect("lm_layer"))
def test_language_model(config, case):
    layer = MHLA.lm(config["hidden_size"], config["num_heads"], expand_k=config["expand_k"], expand_v=config["expand_v"],
                    gated=config["use_output_gate"], norm_eps=config["norm_eps"], official=True,
                    feature_map={"elu": "elu1"}.get(config["feature_map"], config["feature_map"]))  # fmt: skip
    judge(layer, layer, "lm_gated" if config["use_output_gate"] else "lm", case, limit=3e-4)


def test_no_file_is_forgotten():
    files = {file.stem for file in golden.FOLDER.glob("*.safetensors")}
    assert files == {"causal_op", "classification", "dit_module", "lm_layer", "video_module"}
    assert all(list(golden.cases(file)) for file in files)


def test_names_go_back_and_forth():
    for file, family in (("dit_module", "image"), ("video_module", "video"), ("lm_layer", "lm_gated")):
        _, config, case = next(golden.cases(file))
        published = golden.part(case, "param.")
        assert convert.family_of(published) == family
        ours = convert.from_published(published)
        third = ours["qkv.weight"].shape[0]
        widths = (third // 3,) * 3 if family != "lm_gated" else (32, 32, 64)
        back = convert.to_published(ours, family, widths)
        assert set(back) == set(published)
        assert all(torch.equal(back[name], published[name]) for name in back)
