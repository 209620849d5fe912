"""Converted models of diffusers and language models of mhla.hf in C++: `mhla verify --golden` computes what they computed. Folders of
converted models go both ways."""

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


def judged_cases(tmp_path, cases):
    """Every tensor that `mhla verify --golden` compared, by (case, tensor), with its error over its limit on the worst backend."""
    file = tmp_path / "cases.safetensors"
    stored = {f"{case}/{name}": value.detach().clone(memory_format=torch.contiguous_format) for case, (_, tensors) in cases.items() for name, value in tensors.items()}
    safetensors.save_file(stored, str(file), {case: json.dumps(options) for case, (options, _) in cases.items()})
    said = subprocess.run([PROGRAM, "verify", "--golden", file, "--json"], capture_output=True, text=True)
    checks = {}
    for row in (json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")):
        if row.get("kind") == "check":
            key = row["case"], row["tensor"]
            checks[key] = max(checks.get(key, 0), row["error"] / row["limit"])
    assert said.returncode == 0 and checks and max(checks.values()) <= 1, said.stdout + said.stderr
    return checks


def judged(tmp_path, case, options, tensors):
    return {tensor: ratio for (_, tensor), ratio in judged_cases(tmp_path, {case: (options, tensors)}).items()}


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


LANGUAGE = [dict(), dict(kv_heads=1, mix_per_head=True), dict(rope=False, features="elu1"), dict(features="hedgehog", learn_mix=False),
            dict(features="hadamard", rope_base=100.0), dict(gate=False, tied=False), dict(attention="linear"), dict(official=True, expand_k=1.0),
            dict(short_conv=4, norm_eps=1e-3), dict(match=True, mlp=128, expand_v=3.0)]  # fmt: skip


def language_model(options, folder):
    """A model whose weights all show, with the config.json and param.* of the folder that it saves."""
    from test_hf import made

    model = made(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    weights = safetensors.load_file(folder / "model.safetensors")
    return model, config, {f"param.{name}": value for name, value in weights.items()}


def streamed(model, tokens, prompt, mask=None):
    """Logits of the first tokens at once, then of one after the other from the cache."""
    logits, cache, seen = [], None, 0
    for piece in tokens.split([prompt] + [1] * (tokens.shape[1] - prompt), 1):
        seen += piece.shape[1]
        with torch.no_grad():
            said = model(piece, attention_mask=None if mask is None else mask[:, :seen], past_key_values=cache)
        cache = said.past_key_values
        logits.append(said.logits)
    return torch.cat(logits, 1), type(cache).__name__


def with_gradients(model, out, tensors):
    model.zero_grad()
    dout = torch.randn_like(out)
    out.backward(dout, retain_graph=True)
    found = {f"grad.param.{name}": p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    return {"out": out, "dout": dout, **tensors, **found}, 1 + len(found)


@needs_program
@pytest.mark.parametrize("options", LANGUAGE, ids=str)
def test_logits_of_a_language_model(options, tmp_path):
    model, config, weights = language_model(options, tmp_path / "model")
    cases, count = {}, 0
    for length, prompt in (29, 11), (64, 45), (1, 1):  # a ragged last chunk, the whole context, one token
        tokens = torch.randint(97, (2, length))
        out = model(tokens, use_cache=False).logits
        # Of one token the norm of a head cancels mix, whose gradient is what rounding leaves of it.
        tensors, found = with_gradients(model, out, weights) if length > 1 else ({"out": out, **weights}, 1)
        steps, cache = streamed(model, tokens, prompt)
        assert cache == "MhlaCache"
        cases[f"lm_{length}"] = dict(config, prompt=prompt), {**tensors, "in.tokens": tokens, "out.streamed": steps}
        count += found + 1
    assert len(judged_cases(tmp_path, cases)) == count


@needs_program
@pytest.mark.parametrize("options", [options for options in LANGUAGE if "short_conv" not in options], ids=str)
def test_logits_of_a_language_model_with_padding(options, tmp_path):
    model, config, weights = language_model(options, tmp_path / "model")
    tokens, mask = torch.randint(97, (3, 29)), torch.ones(3, 29, dtype=torch.int64)
    mask[1, :11] = mask[2, :19] = 0  # rows of 29, 18 and 10 tokens
    whole = model(tokens, attention_mask=mask).logits
    steps, cache = streamed(model, tokens, 21, mask)
    assert cache == "DynamicCache"
    cases, count = {}, 0
    for row, padding in enumerate((0, 11, 19)):
        tensors, found = with_gradients(model, whole[row : row + 1, padding:], weights)  # those of other rows do not mix with it
        tensors.update({"in.tokens": tokens[row : row + 1, padding:], "out.streamed": steps[row : row + 1, padding:]})
        cases[f"row_{row}"] = dict(config, prompt=21 - padding), tensors
        count += found + 1
    assert len(judged_cases(tmp_path, cases)) == count


@needs_program
def test_other_logits_are_found(tmp_path):
    model, config, weights = language_model({}, tmp_path / "model")
    tokens = torch.randint(97, (2, 29))
    out = model(tokens).logits.detach()
    out[1, 28, 96] += 3e-4 * out.abs().max()
    with pytest.raises(AssertionError, match='"ok": ?false'):
        judged(tmp_path, "lm", config, {"in.tokens": tokens, "out": out, **weights})


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
