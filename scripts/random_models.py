#!/usr/bin/env python3
"""random_models.py FOLDER [MODEL ...]: published image and video models at their real shapes with random weights, as
diffusers and transformers write them: bf16, in shards. For trying and timing without the published files.

    scripts/random_models.py models/ dit_xl_2 sd_vae sana_600m dc_ae gemma_2_2b

dit_xl_2 is DiT-XL/2 for 256 pixels, dit_xl_2_512 for 512. gemma_2_2b_short has the shapes of Gemma-2-2b with two layers:
its states have the same size. wan_1_3b, wan_vae and umt5_xxl are the parts of Wan2.1-T2V-1.3B. Gemma gets a tokenizer of bytes (--mhla makes it). sana_pipeline has SANA-0.6B, DC-AE,
Gemma-2-2b, its tokenizer and a scheduler in one folder, as diffusers publishes them. Needs torch, diffusers, transformers.
"""

import argparse
import json
import pathlib
import shutil
import subprocess

import torch


def dit(size):
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=28, sample_size=size, patch_size=2,
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_zero", norm_elementwise_affine=False)


def sd_vae():
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(128, 256, 512, 512),
        layers_per_block=2, latent_channels=4, sample_size=256, scaling_factor=0.18215)


def sana():
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        in_channels=32, out_channels=32, num_attention_heads=36, attention_head_dim=32, num_layers=28, num_cross_attention_heads=16,
        cross_attention_head_dim=72, cross_attention_dim=1152, caption_channels=2304, mlp_ratio=2.5, sample_size=32, patch_size=1)


def dc_ae():
    from diffusers import AutoencoderDC

    return AutoencoderDC(
        in_channels=3, latent_channels=32, attention_head_dim=32, encoder_layers_per_block=(2, 2, 2, 3, 3, 3),
        decoder_layers_per_block=(3, 3, 3, 3, 3, 3), upsample_block_type="interpolate", downsample_block_type="Conv", scaling_factor=0.41407)


def gemma(layers):
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(Gemma2Config(
        vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256))


def wan():
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=12, attention_head_dim=128, in_channels=16, out_channels=16, text_dim=4096,
        freq_dim=256, ffn_dim=8960, num_layers=30, cross_attn_norm=True, qk_norm="rms_norm_across_heads", eps=1e-6)


def wan_vae():
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan()


def umt5():
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(UMT5Config(
        vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"))


MODELS = {
    "dit_xl_2": lambda: dit(32),
    "dit_xl_2_512": lambda: dit(64),
    "sd_vae": sd_vae,
    "sana_600m": sana,
    "dc_ae": dc_ae,
    "gemma_2_2b": lambda: gemma(26),
    "gemma_2_2b_short": lambda: gemma(2),
    "wan_1_3b": wan,
    "wan_vae": wan_vae,
    "umt5_xxl": umt5,
}


def add_tokenizer(folder, mhla):
    """A tokenizer of bytes."""
    text = folder / "text.txt"
    text.write_text("some words\n")
    subprocess.run([mhla, "data", "tokenize", "--data", text, "--tokenizer", "bytes", "--valid", "0", "--out", folder / "tokens"],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.copy(folder / "tokens" / "tokenizer.json", folder)
    shutil.rmtree(folder / "tokens")
    text.unlink()


PIPELINE = {"transformer": "sana_600m", "vae": "dc_ae", "text_encoder": "gemma_2_2b"}


def make_pipeline(folder, mhla, device):
    """The folders of its models, which are made or moved here, and what diffusers writes beside them."""
    place = folder / "sana_pipeline"
    if place.exists():
        return place
    part = folder / "sana_pipeline.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, model in PIPELINE.items():
        make(folder, model, mhla, device).rename(part / name)
    (part / "tokenizer").mkdir()
    (part / "text_encoder" / "tokenizer.json").rename(part / "tokenizer" / "tokenizer.json")
    (part / "scheduler").mkdir()
    scheduler = {"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    (part / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    (part / "model_index.json").write_text(json.dumps({"_class_name": "SanaPipeline"}))
    part.rename(place)
    return place


def make(folder, name, mhla, device="cpu"):
    """The folder of the model, made unless it is there."""
    place = folder / name
    if name == "sana_pipeline":
        return make_pipeline(folder, mhla, device)
    if place.exists():
        return place
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # as the files, and half the memory
    with torch.device(device):
        model = MODELS[name]()
    torch.set_default_dtype(before)
    part = folder / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part, max_shard_size="500MB")
    if name.startswith("gemma"):
        add_tokenizer(part, mhla)
    part.rename(place)
    return place


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join([*MODELS, "sana_pipeline"]))
    parser.add_argument("--mhla", default="build/release/bin/mhla")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        print(make(options.folder, name, options.mhla), flush=True)


if __name__ == "__main__":
    main()
