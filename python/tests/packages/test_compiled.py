"""A training step of a converted diffusers DiT under torch.compile: one graph for each direction, one operator per layer."""

from collections import Counter

import pytest
import torch

import mhla
from mhla import _backend

make_boxed_func = pytest.importorskip("functorch.compile").make_boxed_func
aot_autograd = pytest.importorskip("torch._dynamo.backends.common").aot_autograd
pytest.importorskip("diffusers")

LAYERS = 3

pytestmark = pytest.mark.skipif(not _backend.available(), reason="no compiled library for this torch (MHLA_LIBRARY)")


def model_of(attention):
    from diffusers import DiTTransformer2DModel

    torch.manual_seed(0)
    model = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=LAYERS,
                                  sample_size=8, patch_size=2, num_embeds_ada_norm=10)  # fmt: skip
    if attention == "mhla":
        model, _ = mhla.replace_attention(model, blocks=(2, 2), backend="kernels")
    return model


def graphs_of(attention, regions):
    """Operators of every graph, forward and backward, of a step in bf16 autocast; and the gradients of the mixing matrices."""
    torch._dynamo.reset()
    found = {"forward": [], "backward": []}

    def noting(name):
        def compiler(graph, _):
            found[name].append(Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function"))
            return make_boxed_func(graph.forward)

        return compiler

    how = dict(fullgraph=True, dynamic=False,
               backend=aot_autograd(fw_compiler=noting("forward"), bw_compiler=noting("backward")))  # fmt: skip
    model = model_of(attention)
    run = model
    if regions:
        for block in model.transformer_blocks:
            block.compile(**how)
    else:
        run = torch.compile(model, **how)
    x, labels = torch.randn(2, 4, 8, 8), torch.tensor([1, 2])
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            out = run(x, timestep=labels, class_labels=labels, return_dict=False)[0]
        out.float().square().mean().backward()
    return found, [p.grad for name, p in model.named_parameters() if name.endswith("mix")]


@pytest.mark.parametrize("regions", [False, True], ids=["whole", "regions"])
def test_a_training_step_is_one_graph(regions):
    found, gradients = graphs_of("mhla", regions)
    times = 1 if regions else LAYERS
    for direction, operator in (("forward", "mhla.bidirectional.default"), ("backward", "mhla.bidirectional_backward.default")):
        # One block is compiled for all; the first of them gets tokens with strides of its own.
        assert len(found[direction]) == 1 + regions, "compiled again"
        assert all(graph[operator] == times for graph in found[direction])
    assert len(gradients) == LAYERS and all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_a_converted_model_has_no_more_operators():
    """What surrounds the operator (casts, copies, views) is no more than around scaled_dot_product_attention."""
    counts = {attention: graphs_of(attention, False)[0] for attention in ("softmax", "mhla")}
    for direction in ("forward", "backward"):
        softmax, ours = (sum(counts[attention][direction][0].values()) for attention in ("softmax", "mhla"))
        assert ours <= softmax, counts["mhla"][direction][0] - counts["softmax"][direction][0]
