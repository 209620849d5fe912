"""Replaced attention layers with the compiled kernels, against backend="torch": the layers of the packages are imitated
here, as far as they are read. `make test-python` has the real ones."""

import pytest
import torch
from torch import nn

import mhla
from mhla.families.denoisers import DiTProcessor, SanaProcessor, WanProcessor


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.grid_size = nn.Conv2d(3, 32, 4, 4), (8, 8)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj = 4, nn.Linear(32, 96), nn.Linear(32, 32)
        self.q_norm, self.k_norm, self.proj_drop = nn.LayerNorm(8), nn.LayerNorm(8), nn.Identity()

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (self.q_norm(q) @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(-2))


class VisionTransformer(nn.Module):
    num_prefix_tokens = 2

    def __init__(self):
        super().__init__()
        self.patch_embed, self.prefix = PatchEmbed(), nn.Parameter(torch.randn(1, 2, 32))
        self.attn = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        for layer in self.attn:
            x = x + layer(x)
        return x


for imitated in (Attention, VisionTransformer):
    imitated.__module__ = "timm.imitated"


class LlamaAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_idx, self.head_dim = 0, 8
        self.config = type("Config", (), {"max_position_embeddings": 64})
        self.q_proj, self.k_proj = nn.Linear(32, 32), nn.Linear(32, 16)
        self.v_proj, self.o_proj = nn.Linear(32, 16), nn.Linear(32, 32)


class LlamaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = LlamaAttention()


for imitated in (LlamaAttention, LlamaModel):
    imitated.__module__ = "transformers.imitated"


class Layer(nn.Module):
    """An attention layer of diffusers."""

    residual_connection, rescale_output_factor = False, 1.0

    def __init__(self, norm_size):
        super().__init__()
        self.heads, self.processor = 2, "softmax"
        self.to_q, self.to_k, self.to_v = (nn.Linear(24, 24) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(24, 24), nn.Identity()])
        self.norm_q, self.norm_k = (nn.LayerNorm(norm_size) for _ in range(2))


def both(make, *inputs):
    """Output and gradients by the kernels and by torch."""
    results = []
    for backend in ("kernels", "torch"):
        torch.manual_seed(0)
        module, call = make(backend)
        out = call(*inputs)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad for p in module.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) > 3
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("options", [dict(blocks=(4, 4)), dict(block_size=2), dict(block_size=(2, 3), normalizer="none")], ids=str)
def test_vision(size, options):
    def make(backend):
        model, report = mhla.replace_attention(VisionTransformer(), **options, backend=backend)
        assert report.replaced == ["attn.0", "attn.1"]
        return model, model

    both(make, torch.randn(2, 3, *size))


def test_vision_and_back():
    model, images = VisionTransformer().eval(), torch.randn(2, 3, 32, 32)
    want = model(images)
    model, _ = mhla.replace_attention(model, blocks=(2, 2))
    assert not torch.allclose(model(images), want)
    _, restored = mhla.restore_attention(model)
    assert restored == ["attn.0", "attn.1"] and torch.equal(model(images), want)


@pytest.mark.parametrize("normalizer", ["paper", "none"])
@pytest.mark.parametrize("padded", [False, True])
def test_language(normalizer, padded):
    angles = torch.rand(2, 37, 4)
    positions = tuple(torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    mask = torch.ones(2, 37, dtype=torch.int64) if padded else None

    def make(backend):
        model, _ = mhla.replace_attention(LlamaModel(), block_size=8, normalizer=normalizer, backend=backend)
        return model, lambda x: model.self_attn(x, positions, mask)[0]

    x = torch.randn(2, 37, 32)
    both(make, x)
    torch.manual_seed(0)
    model, _ = mhla.replace_attention(LlamaModel(), block_size=8, normalizer=normalizer)
    ones = torch.ones(2, 37, dtype=torch.int64)
    torch.testing.assert_close(model.self_attn(x, positions, ones)[0], model.self_attn(x, positions)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make_processor, norm, size", [(DiTProcessor, 12, (4, 6)), (SanaProcessor, 24, (4, 6)), (WanProcessor, 24, (2, 3, 4))])
def test_processors(make_processor, norm, size):
    from mhla.families.core import Grid, Settings

    angles = torch.rand(1, 24, 1, 6).repeat_interleave(2, -1)
    rotary = dict(rotary_emb=(angles.cos(), angles.sin())) if make_processor is WanProcessor else {}

    def make(backend):
        layer = Layer(norm)
        settings = Settings((2,) * len(size), None, "relu_eps", "paper", 1e-6, None, None, backend)
        layer.processor = processor = make_processor(layer, Grid(size), settings, 0)
        assert processor.old == "softmax"
        return layer, lambda x: processor(layer, x, **rotary)

    both(make, torch.randn(2, 24, 24))
    layer, call = make("torch")
    with pytest.raises(RuntimeError, match="encoder_hidden_states is given"):
        layer.processor(layer, torch.randn(2, 24, 24), torch.randn(2, 24, 24))
    with pytest.raises(RuntimeError, match="got 23 tokens, expected those of the grid"):
        call(torch.randn(2, 23, 24)) if not rotary else layer.processor(layer, torch.randn(2, 23, 24))
