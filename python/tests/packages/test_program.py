"""Converted models of diffusers in C++: `mhla verify --golden` computes what they computed, and their folders go both ways."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from test_families import denoise, denoise_dit, dit, latents, llama, sana, wan

import mhla
from mhla.families.program import to_program

safetensors = pytest.importorskip("safetensors.torch")
PROGRAM = Path(os.environ.get("MHLA_PROGRAM", Path(__file__).parents[3] / "build/release/bin/mhla"))
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="no build/release/bin/mhla, or MHLA_PROGRAM")
T = torch.tensor([3.0, 5.0])


def converted(make, **options):
    model, _ = mhla.replace_attention(make().eval(), **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".mix"):
                parameter.copy_(torch.rand_like(parameter))
            elif "scale_shift" not in name and parameter.dim() > 1:
                parameter.mul_(1.5)
    return model


def judged(tmp_path, case, options, tensors):
    """Every tensor that `mhla verify --golden` compared, with its error over its limit."""
    file = tmp_path / f"{case}.safetensors"
    tensors = {f"{case}/{name}": value.detach().contiguous() for name, value in tensors.items()}
    safetensors.save_file(tensors, str(file), {case: json.dumps(options)})
    said = subprocess.run([PROGRAM, "verify", "--golden", file, "--json"], capture_output=True, text=True)
    rows = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    checks = {row["tensor"]: row["error"] / row["limit"] for row in rows if row.get("kind") == "check"}
    assert said.returncode == 0 and checks and max(checks.values()) <= 1, said.stdout + said.stderr
    return checks


def gradients(model, out, dout, inputs, names):
    """Of the inputs, and of the parameters by the names of the program."""
    out.backward(dout)
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {f"grad.in.{name}": x.grad for name, x in inputs.items()}
    for name, value in grads.items():
        mixed = value if not name.endswith(".processor.mix") else value[..., None, None]
        found[f"grad.param.{name.replace('.processor.mix', names)}"] = mixed
    return found


@needs_program
def test_dit(tmp_path):
    model = converted(dit, blocks=(4, 2))
    config, weights = to_program(model)
    published = {}
    for name, value in weights.items():
        name = name.replace(".attn.qkv.", ".attn.to_qkv.").replace(".attn.out.", ".attn.to_out.0.")
        published["param." + name.replace(".attn.mix", ".attn.piece_attn.conv.weight")] = value[..., None, None] if name.endswith(".mix") else value
    options = dict(family="dit", names="original", attention="mhla", official=False, own_embedders=True, freq_shift=1, norm2_eps=config["norm2_eps"],
                   input_size=config["image"], patch_size=config["patch"], in_channels=config["channels"], hidden_size=config["dim"],
                   depth=config["depth"], num_heads=config["heads"], num_classes=config["classes"], learn_sigma=True, blocks=config["blocks"],
                   features="relu_eps", normalizer="paper", gate="none", lepe=0)  # fmt: skip
    tensors = {"in.x": latents(16, 16), "in.t": T, "in.y": torch.tensor([1, 2]), "out": denoise_dit()(model)[0], **published}
    assert set(judged(tmp_path, "dit", options, tensors)) == {"out"}


@needs_program
def test_sana(tmp_path):
    model = converted(sana, blocks=(2, 4))
    config, weights = to_program(model)
    x, y, t = latents(8, 8).requires_grad_(), torch.randn(2, 5, 16).requires_grad_(), T.clone().requires_grad_()
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[0, 3:] = 0
    out = model(x, encoder_hidden_states=y, timestep=t, encoder_attention_mask=mask).sample
    dout = torch.randn_like(out)
    options = dict(family="sana", names="diffusers", attention="mhla", official=False, hidden_size=config["dim"], linear_head_dim=config["head_dim"],
                   depth=config["depth"], num_heads=config["cross_heads"], mlp_ratio=config["mlp_ratio"], in_channels=4, patch_size=1,
                   caption_channels=config["caption_dim"], model_max_length=5, norm_eps=model.caption_norm.eps, eps=config["eps"], qk_norm=False,
                   blocks=config["blocks"], normalizer="paper", features="relu")  # fmt: skip
    found = gradients(model, out, dout, dict(x=x, y=y, t=t), ".piece_attn.conv.weight")
    found = {name: value for name, value in found.items() if not name.endswith(".attn2.to_k.bias")}  # which vanishes under softmax
    tensors = {"in.x": x, "in.y": y, "in.t": t, "in.mask": mask, "dout": dout, "out": out, **{f"param.{n}": v for n, v in weights.items()}, **found}
    assert len(judged(tmp_path, "sana", options, tensors)) == 1 + len(found)


@needs_program
@pytest.mark.parametrize("layers", ["all", [0, 2]], ids=str)
def test_wan(tmp_path, layers):
    model = converted(wan, blocks=(1, 2, 2), layers=layers)
    config, weights = to_program(model)
    x, text = latents(2, 8, 8).requires_grad_(), torch.randn(2, 7, 16).requires_grad_()
    out = model(x, encoder_hidden_states=text, timestep=T).sample
    dout = torch.randn_like(out)
    c = model.config
    keys = ("num_attention_heads", "attention_head_dim", "in_channels", "out_channels", "text_dim", "freq_dim", "ffn_dim", "num_layers",
            "cross_attn_norm", "eps", "rope_max_seq_len")  # fmt: skip
    options = dict(family="wan_transformer", names="diffusers", time=T.tolist(), patch_size=list(c.patch_size), **{key: c[key] for key in keys},
                   mhla=dict(layers=config["layers"], block_layout=config["blocks"], normalizer="paper", head_norm=False, official=False))  # fmt: skip
    found = gradients(model, out, dout, dict(x=x, text=text), ".block_attn.conv.weight")
    tensors = {"in.x": x, "in.text": text, "dout": dout, "out": out, **{f"param.{n}": v for n, v in weights.items()}, **found}
    assert len(judged(tmp_path, "wan", options, tensors)) == 1 + len(found)


MODELS = {"dit": (dit, dict(blocks=(4, 2)), denoise_dit()), "sana": (sana, dict(blocks=(2, 4)), denoise(8, 8)),
          "wan": (wan, dict(blocks=(1, 2, 2), layers=[0, 2]), denoise(2, 8, 8))}  # fmt: skip


@pytest.mark.parametrize("name", list(MODELS))
def test_a_folder_goes_both_ways(name, tmp_path):
    make, options, run = MODELS[name]
    model = converted(make, **options)
    mhla.save_denoiser(model, tmp_path)
    other, _ = mhla.replace_attention(make().eval(), **options)
    mhla.load_denoiser(other, tmp_path)
    with torch.no_grad():
        assert torch.equal(run(other)[0], run(model)[0])
    weights, _ = mhla.convert.load_safetensors(tmp_path / "model.safetensors")
    removed = next(key for key in weights if key.endswith(("attn.mix", "attn.conv.weight")))
    safetensors.save_file({**{key: value for key, value in weights.items() if key != removed}, "more": torch.ones(1)}, str(tmp_path / "model.safetensors"))
    with pytest.raises(RuntimeError, match=f"missing: {removed}; left over: more"):
        mhla.load_denoiser(other, tmp_path)


@needs_program
@pytest.mark.parametrize("name", list(MODELS))
def test_the_program_opens_the_folder(name, tmp_path):
    make, options, _ = MODELS[name]
    model = converted(make, **options)
    mhla.save_denoiser(model, tmp_path / "model")
    said = subprocess.run([PROGRAM, "inspect", tmp_path / "model", "--json"], capture_output=True, text=True)
    assert said.returncode == 0 and "mhla" in said.stdout, said.stdout + said.stderr


@needs_program
def test_the_program_draws_from_a_converted_dit(tmp_path):
    from test_pipelines import dit_pipeline

    mhla.save_denoiser(converted(dit, blocks=(4, 2)), tmp_path / "model")
    dit_pipeline().vae.save_pretrained(tmp_path / "vae")
    command = [PROGRAM, "sample", "--model", tmp_path / "model", "--vae", tmp_path / "vae", "--classes", "1,2", "--steps", "2", "--out", tmp_path / "out"]
    said = subprocess.run([*command, "--threads", "1"], capture_output=True, text=True)
    assert said.returncode == 0 and len(list((tmp_path / "out/images").glob("*.png"))) == 2, said.stdout + said.stderr


def test_other_models_are_refused():
    with pytest.raises(RuntimeError, match="a LlamaForCausalLM with 0 converted layers, expected a DiTTransformer2DModel"):
        mhla.save_denoiser(llama(), "nowhere")
    half, _ = mhla.replace_attention(dit(), blocks=(2, 2), layers=[0])
    with pytest.raises(RuntimeError, match="1 of 3 layers are converted, expected all"):
        mhla.save_denoiser(half, "nowhere")
