"""replace_attention and restore_attention with the real packages, at tiny random configurations."""

import copy
import pickle

import plain
import pytest
import torch

import mhla

timm = pytest.importorskip("timm")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")


def timm_vit(**options):
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=4, embed_dim=48, depth=3, num_heads=4, num_classes=10, dynamic_img_size=True, **options
    )


def hf_vit():
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=4)
    return transformers.ViTForImageClassification(config)


def llama():
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128)  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def dit():
    return diffusers.DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=3,
                                           sample_size=16, patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10)  # fmt: skip


def sana():
    return diffusers.SanaTransformer2DModel(in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=8, num_layers=3,
                                            num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32,
                                            caption_channels=16, sample_size=8, patch_size=1)  # fmt: skip


def wan():
    return diffusers.WanTransformer3DModel(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
                                           text_dim=16, freq_dim=16, ffn_dim=32, num_layers=3, cross_attn_norm=True, rope_max_seq_len=32)  # fmt: skip


def images(rows=32, columns=32):
    return lambda model: (model(torch.randn(2, 3, rows, columns, generator=torch.Generator().manual_seed(1))),)


def hf_images(size=(32, 32)):
    def run(model):
        pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
        return (model(pixels, interpolate_pos_encoding=size != (32, 32)).logits,)

    return run


def text(model):
    tokens = torch.randint(97, (2, 37), generator=torch.Generator().manual_seed(1))
    return (model(tokens).logits,)


def latents(*shape):
    return torch.randn(2, 4, *shape, generator=torch.Generator().manual_seed(1))


def denoise_dit(rows=16, columns=16):
    return lambda model: (model(latents(rows, columns), timestep=torch.tensor([3, 5]), class_labels=torch.tensor([1, 2])).sample,)


def denoise(*shape):
    words = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    return lambda model: (model(latents(*shape), encoder_hidden_states=words, timestep=torch.tensor([3, 5])).sample,)


CASES = {
    "timm": (timm_vit, dict(blocks=(4, 4)), [images(), images(48, 24)], 3),
    "timm registers": (lambda: timm_vit(reg_tokens=4, qk_norm=True), dict(block_size=2), [images(), images(48, 40)], 3),
    "timm mean pooling": (lambda: timm_vit(class_token=False, global_pool="avg"), dict(blocks=(4, 2)), [images(), images(24, 40)], 3),
    "transformers.vit": (hf_vit, dict(block_size=2), [hf_images(), hf_images((24, 40))], 3),
    "transformers.llama": (llama, dict(block_size=8), [text], 3),
    "diffusers.dit": (dit, dict(blocks=(4, 4)), [denoise_dit()], 3),
    "diffusers.sana": (sana, dict(block_size=2), [denoise(8, 8), denoise(8, 12)], 3),
    "diffusers.wan": (wan, dict(blocks=(1, 2, 2)), [denoise(2, 8, 8), denoise(3, 8, 12)], 3),
}


@pytest.mark.parametrize("name", list(CASES))
def test_convert_train_save_load_restore(name, tmp_path):
    make, options, runs, layers = CASES[name]
    model = make().eval()
    with torch.no_grad():
        before = runs[0](model)[0]
    same, report = mhla.replace_attention(model, **options)
    assert same is model and report.family == name.split(" ")[0] and len(report.replaced) == layers
    assert str(report).startswith(f"{report.family}: {layers} attention layers replaced")
    matrices = [key for key in model.state_dict() if key.endswith("mix")]
    assert len(matrices) == layers
    for run in runs:
        model.zero_grad()
        out = run(model)[0]
        assert torch.isfinite(out).all()
        out.square().mean().backward()
        gradients = dict(model.named_parameters())
        assert all(gradients[key].grad.abs().sum() > 0 for key in matrices)
    assert not torch.allclose(runs[0](model)[0], before)

    # An optimiser that keeps the matrices in range.
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    mhla.constrain_after_step(optimizer, model)
    optimizer.step()
    assert all(0 <= model.state_dict()[key].min() and model.state_dict()[key].max() <= 1 for key in matrices)
    model.load_state_dict(make().state_dict(), strict=False)

    with torch.no_grad():
        want = [run(model)[0] for run in runs]
        torch.save(model.state_dict(), tmp_path / "model.pt")
        other = make().eval()
        other, _ = mhla.replace_attention(other, **options)
        other.load_state_dict(torch.load(tmp_path / "model.pt"))
        for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            for run, expected in zip(runs, want):
                torch.testing.assert_close(run(twin)[0], expected)
        plain_weights = {key: value for key, value in model.state_dict().items() if key not in matrices}
        same, restored = mhla.restore_attention(model)
        assert same is model and restored == report.replaced
        assert set(model.state_dict()) == set(plain_weights)
        fresh = make().eval()
        fresh.load_state_dict(plain_weights)
        torch.testing.assert_close(runs[0](model)[0], runs[0](fresh)[0])
    with pytest.raises(RuntimeError, match="converted already"):
        mhla.replace_attention(other, **options)


def test_layers_are_chosen():
    for layers, replaced in (("every-3rd-kept", [0, 1]), ("every-2nd-kept", [0, 2]), ([1], [1]), ("all", [0, 1, 2])):
        model, report = mhla.replace_attention(timm_vit(), blocks=(2, 2), layers=layers)
        assert report.replaced == [f"blocks.{i}.attn" for i in replaced]
        assert report.left == {f"blocks.{i}.attn": "not among layers" for i in range(3) if i not in replaced}
        assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    _, report = mhla.replace_attention(sana(), blocks=(2, 2))
    assert report.left == {f"transformer_blocks.{i}.attn2": "cross-attention" for i in range(3)}


@pytest.mark.parametrize("options, message", [
    (dict(), "expected one of blocks and block_size"),
    (dict(blocks=(2, 2), layers="odd"), "layers is 'odd', expected all, every-3rd-kept or a list"),
    (dict(blocks=(2, 2), layers=[7]), "layers has 7, expected 0 to 2"),
    (dict(blocks=(2, 2, 2)), "expected 2 axes"),
    (dict(blocks=(2, 2), attention="linear"), "attention is 'linear', expected mhla"),
])  # fmt: skip
def test_mistakes_are_named(options, message):
    model = timm_vit()
    names = set(model.state_dict())
    with pytest.raises(RuntimeError, match=message):
        mhla.replace_attention(model, **options)
    assert set(model.state_dict()) == names


def test_other_models_and_masks_are_refused():
    with pytest.raises(RuntimeError, match="the model is a Linear, expected one that has a timm VisionTransformer"):
        mhla.replace_attention(torch.nn.Linear(2, 2), blocks=2)
    with pytest.raises(RuntimeError, match="expected block_size=64"):
        mhla.replace_attention(llama(), blocks=(2, 2))
    model, _ = mhla.replace_attention(timm_vit(), blocks=(2, 2))
    with pytest.raises(RuntimeError, match="attn_mask"):
        model.blocks[0](torch.randn(1, 65, 48), attn_mask=torch.ones(65, 65))


def test_the_numbers_of_a_class_token():
    """One converted layer against pairs of tokens: the class token is a block of its own."""
    model, _ = mhla.replace_attention(timm_vit(), blocks=(2, 4))
    layer = model.blocks[0].attn.double()
    model.patch_embed.proj(torch.randn(1, 3, 32, 32))
    x = torch.randn(2, 65, 48, dtype=torch.float64)
    q, k, v = layer.qkv(x).unflatten(-1, (3, 4, 12)).unbind(2)
    block = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + plain.block_of(64, grid=(8, 8), blocks=(2, 4))])
    want = layer.proj(plain.attention(q, k, v, layer.mix, block).flatten(-2))
    torch.testing.assert_close(layer(x), want)


def test_sana_with_equal_weights_is_its_own_attention():
    model = sana().eval()
    run = denoise(8, 8)
    with torch.no_grad():
        want = run(model)[0]
        mhla.replace_attention(model, blocks=(2, 2), mix="uniform")
        torch.testing.assert_close(run(model)[0], want, rtol=1e-4, atol=1e-5)


def test_lora_stays(tmp_path):
    peft = pytest.importorskip("peft")
    model, _ = mhla.replace_attention(llama(), block_size=8)
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], modules_to_save=[], r=2))
    text(tuned)[0].sum().backward()
    assert any("lora" in name and p.grad is not None for name, p in tuned.named_parameters())
    _, restored = mhla.restore_attention(tuned)
    assert len(restored) == 3 and any("lora" in name for name, _ in tuned.named_parameters())
    text(tuned)
