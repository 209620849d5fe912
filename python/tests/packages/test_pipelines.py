"""Converted models inside the pipelines of diffusers, with LoRA adapters, under offloading, and saved beside a pipeline."""

import numpy
import pytest
import torch
from test_families import denoise, denoise_dit, dit, sana, wan

import mhla

diffusers = pytest.importorskip("diffusers")


def dit_pipeline():
    vae = diffusers.AutoencoderKL(in_channels=3, out_channels=3, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                                  block_out_channels=(8, 8), latent_channels=4, norm_num_groups=4)  # fmt: skip
    return diffusers.DiTPipeline(transformer=dit(), vae=vae, scheduler=diffusers.DDIMScheduler())


def sana_pipeline():
    vae = diffusers.AutoencoderDC(
        latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        downsample_block_type="conv", upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407,
    )  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)
    return diffusers.SanaPipeline(tokenizer=None, text_encoder=None, vae=vae, transformer=sana(), scheduler=scheduler)


def wan_pipeline():
    vae = diffusers.AutoencoderKLWan(base_dim=3, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
                                     latents_mean=[0.0] * 4, latents_std=[1.0] * 4)  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)
    return diffusers.WanPipeline(tokenizer=None, text_encoder=None, vae=vae, transformer=wan(), scheduler=scheduler)


def words(**more):
    make = torch.Generator().manual_seed(4)
    found = {name: torch.randn(1, 5, 16, generator=make) for name in ("prompt_embeds", "negative_prompt_embeds")}
    return {**found, **more}


def ask_dit(pipe):
    return pipe(class_labels=[3], guidance_scale=1.0, num_inference_steps=2, generator=torch.Generator().manual_seed(0), output_type="np").images


def ask_sana(pipe):
    masks = {f"{name}prompt_attention_mask": torch.ones(1, 5, dtype=torch.int64) for name in ("", "negative_")}
    return pipe(**words(**masks), negative_prompt=None, num_inference_steps=2, height=32, width=32, generator=torch.Generator().manual_seed(0), output_type="np",
                use_resolution_binning=False).images  # fmt: skip


def ask_wan(pipe):
    return pipe(**words(), num_inference_steps=2, height=64, width=64, num_frames=5, generator=torch.Generator().manual_seed(0),
                output_type="np").frames  # fmt: skip


PIPELINES = {
    "dit": (dit_pipeline, ask_dit, dict(blocks=(4, 4)), denoise_dit()),
    "sana": (sana_pipeline, ask_sana, dict(block_size=2), denoise(8, 8)),
    "wan": (wan_pipeline, ask_wan, dict(blocks=(1, 2, 2)), denoise(2, 8, 8)),
}


@pytest.mark.parametrize("name", list(PIPELINES))
def test_a_pipeline_runs_the_converted_model(name):
    make, ask, options, _ = PIPELINES[name]
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    before = ask(pipe)
    mhla.replace_attention(pipe.transformer, **options)
    after = ask(pipe)
    assert after.shape == before.shape and numpy.isfinite(after).all() and not numpy.allclose(after, before)
    assert numpy.array_equal(after, ask(pipe))
    if hasattr(pipe.transformer, "attn_processors"):
        assert sum(key.endswith("attn1.processor") for key in pipe.transformer.attn_processors) == 3
    mhla.restore_attention(pipe.transformer)
    assert numpy.array_equal(ask(pipe), before)


@pytest.mark.parametrize("name", list(PIPELINES))
def test_adapters_learn_beside_the_mixing_matrices(name):
    peft = pytest.importorskip("peft")
    make, _, options, run = PIPELINES[name]
    model = make().transformer.eval()  # training drops labels
    mhla.replace_attention(model, **options)
    want = run(model)[0]
    config = peft.LoraConfig(r=2, target_modules=["to_q", "to_v"])
    model.add_adapter(config) if hasattr(model, "add_adapter") else peft.inject_adapter_in_model(config, model)  # DiT has no mixin
    torch.testing.assert_close(run(model)[0], want)  # they start as nothing
    run(model)[0].square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert any("attn1.to_q.lora_B" in name and grad.abs().sum() > 0 for name, grad in grads.items())


@pytest.mark.parametrize("name", list(PIPELINES))
def test_offloaded_weights_come_back_for_each_layer(name):
    accelerate = pytest.importorskip("accelerate")
    make, _, options, run = PIPELINES[name]
    model = make().transformer.eval()
    mhla.replace_attention(model, **options)
    with torch.no_grad():
        want = run(model)[0]
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        mix = next(p for name, p in model.named_parameters() if name.endswith("processor.mix"))
        assert mix.device.type == "meta"
        torch.testing.assert_close(run(model)[0], want)


@pytest.mark.parametrize("name", list(PIPELINES))
def test_saved_by_diffusers(name, tmp_path):
    make, _, options, run = PIPELINES[name]
    model = make().transformer.eval()
    plain = {key: value.clone() for key, value in model.state_dict().items()}
    mhla.replace_attention(model, **options)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)  # without the matrices: the model of diffusers
    assert set(again.state_dict()) == set(plain)
    mhla.replace_attention(again.eval(), **options)
    weights, _ = mhla.convert.load_safetensors(tmp_path / "diffusion_pytorch_model.safetensors")
    again.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(run(again)[0], run(model)[0])
