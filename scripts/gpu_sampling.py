#!/usr/bin/env python3
"""Images a second of `mhla sample` against diffusers: DiT-XL/2 at 256 and 512 pixels, SANA-0.6B at 1024.

    scripts/gpu_sampling.py FOLDER [dit_256] [dit_512] [sana_1024] [--steps 20] [--compile]

Random weights at the real shapes (random_models.py) in FOLDER. Both programs get the same weights, steps, guidance, batch
and bf16, and go from noise to 8-bit images, the autoencoder included and the text encoder not. mhla also writes its PNG
files, diffusers none. The first batch of either, with its warm-up, is not counted. mhla runs the model as published and
with MHLA instead (--attention). --compile compiles diffusers' network, too. Needs torch, diffusers, transformers; files of diffusers in a
folder of PYTHONPATH are enough.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import time

import torch

import random_models

CASES = {  # network, its autoencoder, pixels, images at a time, guidance, MHLA's blocks
    "dit_256": ("dit_xl_2", "sd_vae", 256, 32, 4.0, "4x4"),
    "dit_512": ("dit_xl_2_512", "sd_vae", 512, 16, 4.0, "4x4"),
    "sana_1024": ("sana_600m", "dc_ae", 1024, 8, 4.5, "4x4"),
}
TEXT_ENCODER = "gemma_2_2b_short"
PROMPT = "a small house by the sea"


def show(case, who, rate, options, note=""):
    print(f"{case:10} {who:28} {rate:9.3f} images/s  {options.steps} steps, batch {options.of_batch}{note}", flush=True)
    return rate


def of_mhla(case, attention, options):
    """Two runs, of several batches and of one: the difference has neither loading nor warm-up. The longer one goes first, so
    files that are not in memory yet count against mhla."""
    name, vae, pixels, batch, guidance, blocks = CASES[case]
    options.of_batch = batch = options.batch or batch
    model = options.folder / f"{name}-{attention}"
    if not model.exists():
        convert = [options.mhla, "convert", options.folder / name, model, "--dtype", "bf16"]
        if attention == "mhla":
            convert += ["--attention", "mhla", "--blocks", blocks]
        subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
    words = [options.mhla, "sample", "--model", model, "--vae", options.folder / vae, "--guidance", guidance, "--steps", options.steps,
             "--batch", batch, "--device", options.device, "--precision", "bf16" if options.device == "cuda" else "f32", "--json"]
    if case == "sana_1024":
        words += ["--text-encoder", options.folder / TEXT_ENCODER, "--prompt", PROMPT, "--size", pixels, "--per-prompt"]
    else:
        words += ["--classes", "207", "--sampler", "ddim", "--per-class"]
    seconds = {}
    for batches in (1 + options.batches, 1):
        out = options.folder / "samples"
        shutil.rmtree(out, ignore_errors=True)
        made = subprocess.run([str(word) for word in [*words, batches * batch, "--out", out]], check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(made.stdout.splitlines()[-1])
        seconds[batches] = row["seconds"]
        print(f"# {case} {attention}: {row['images']} images in {row['seconds']:.2f} s, {row['attention']} attention", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    rate = options.batches * batch / (seconds[1 + options.batches] - seconds[1])
    return show(case, f"mhla, {row['attention']} attention", rate, options)


def dit_pipeline(case, options):
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    name, vae, _, batch, guidance, _ = CASES[case]
    transformer = DiTTransformer2DModel.from_pretrained(options.folder / name, torch_dtype=options.dtype)
    pipe = DiTPipeline(transformer, AutoencoderKL.from_pretrained(options.folder / vae, torch_dtype=options.dtype),
                       DDIMScheduler(beta_schedule="linear", clip_sample=False, set_alpha_to_one=False))
    batch = options.batch or batch
    return pipe, lambda: pipe(class_labels=[207] * batch, guidance_scale=guidance, num_inference_steps=options.steps)


def sana_pipeline(case, options):
    from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel

    name, vae, pixels, batch, guidance, _ = CASES[case]
    batch = options.batch or batch
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, num_train_timesteps=1000)
    pipe = SanaPipeline(None, None, AutoencoderDC.from_pretrained(options.folder / vae, torch_dtype=options.dtype),
                        SanaTransformer2DModel.from_pretrained(options.folder / name, torch_dtype=options.dtype), scheduler)
    states = torch.randn(2, 1, 300, 2304, device=options.device, dtype=options.dtype)
    mask = torch.ones(1, 300, dtype=torch.long, device=options.device)
    return pipe, lambda: pipe(
        prompt=None, negative_prompt=None, prompt_embeds=states[0], prompt_attention_mask=mask, negative_prompt_embeds=states[1],
        negative_prompt_attention_mask=mask, num_images_per_prompt=batch, height=pixels, width=pixels, guidance_scale=guidance,
        num_inference_steps=options.steps, use_resolution_binning=False)


def of_diffusers(case, compiled, options):
    options.of_batch = batch = options.batch or CASES[case][3]
    pipe, step = (sana_pipeline if case == "sana_1024" else dit_pipeline)(case, options)
    pipe.to(options.device)
    pipe.set_progress_bar_config(disable=True)
    if compiled:
        pipe.transformer = torch.compile(pipe.transformer)
    step()
    begun = time.perf_counter()
    for _ in range(options.batches):
        step()
    rate = options.batches * batch / (time.perf_counter() - begun)
    del pipe, step
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return show(case, "diffusers, compiled" if compiled else "diffusers", rate, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=0, help="images at a time (default: 32, 16, 8)")
    parser.add_argument("--batches", type=int, default=3, help="batches that are timed")
    parser.add_argument("--attention", default="published,mhla", help="what mhla runs: published, mhla or both")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="also diffusers with torch.compile")
    parser.add_argument("--mhla", default="build/release/bin/mhla")
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    import diffusers

    print(f"torch {torch.__version__}, diffusers {diffusers.__version__}" + (f", {torch.cuda.get_device_name()}" if options.device == "cuda" else ""))
    for case in options.cases:
        name, vae = CASES[case][:2]
        for one in (name, vae, *([TEXT_ENCODER] if case == "sana_1024" else [])):
            random_models.make(options.folder, one, options.mhla, options.device)
        theirs = {word: of_diffusers(case, word == "compiled", options) for word in ("as it is", *(["compiled"] if options.compile else []))}
        for attention in options.attention.split(","):
            ours = of_mhla(case, attention, options)
            over = ", ".join(f"{ours / rate:.2f} times diffusers {word}" for word, rate in theirs.items())
            print(f"{case:10} {attention} attention: {over}", flush=True)


if __name__ == "__main__":
    main()
