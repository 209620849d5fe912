#!/usr/bin/env python3
"""A diffusion transformer in plain PyTorch with softmax attention, for comparison with `mhla bench model`.

    scripts/gpu_dit.py [--model dit_s_2] [--pass fwd,train] [--image 32,64,128,256] [--batch 64,32,8,2] [--without-attention]

The layers of DiT in bf16, compiled (torch.compile). --image counts latents: 32 is a picture of 256
pixels. A forward pass runs in bf16 without gradients. A training step has DiT's loss on the noise, clipping and AdamW.
Median wall time, as `mhla bench model --model dit_s_2 --device cuda --precision bf16` measures it.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

from gpu_timing import median_ms

SIZES = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}  # channels, blocks, heads


class Block(nn.Module):
    def __init__(self, dim, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.ada = nn.Linear(dim, 6 * dim)

    def attend(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if not self.attention:
            return self.proj((q + k + v).transpose(1, 2).reshape(B, N, C))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(F.silu(c))[:, None].chunk(6, -1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.fc2(F.gelu(self.fc1(self.norm2(x) * (1 + scale2) + shift2), approximate="tanh"))


class Dit(nn.Module):
    def __init__(self, size, image, patch, attention, channels=4, classes=1000):
        super().__init__()
        dim, depth, heads = SIZES[size]
        self.patch, self.channels = patch, channels
        self.patches = nn.Conv2d(channels, dim, patch, patch)
        self.register_buffer("place", torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.register_buffer("waves", torch.exp(-math.log(1e4) * torch.arange(128) / 128))
        self.label = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, attention) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.ada, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, patch * patch * 2 * channels)

    def forward(self, x, t, labels):
        angle = t[:, None].float() * self.waves
        c = self.time(torch.cat([angle.cos(), angle.sin()], 1).to(self.time[0].weight.dtype)) + self.label(labels)
        side = x.shape[-1] // self.patch
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada(F.silu(c))[:, None].chunk(2, -1)
        x = self.out(self.norm(x) * (1 + scale) + shift)
        x = x.view(x.shape[0], side, side, self.patch, self.patch, -1)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(x.shape[0], -1, side * self.patch, side * self.patch)


def milliseconds(name, pass_name, image, batch, attention, seconds):
    _, size, patch = name.split("_")
    model = Dit(size, image, int(patch), attention).cuda()
    x = torch.randn(batch, 4, image, image, device="cuda")
    t = torch.randint(1000, (batch,), device="cuda")
    labels = torch.randint(1000, (batch,), device="cuda")
    if pass_name == "fwd":
        model = model.bfloat16().eval()
        x = x.bfloat16()
        run = torch.compile(model, mode="reduce-overhead")

        def step():
            with torch.no_grad():
                run(x, t, labels)
            torch.cuda.synchronize()
    else:
        run = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
        noise = torch.randn_like(x)

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(run(x, t, labels)[:, :4].float(), noise)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()

    return median_ms(step, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dit_s_2", help="dit_s_2 to dit_xl_8")
    parser.add_argument("--pass", dest="passes", default="fwd,train")
    parser.add_argument("--image", default="32,64,128,256", help="sides of the latents")
    parser.add_argument("--batch", default="64,32,8,2", help="one for every --image")
    parser.add_argument("--without-attention", action="store_true", help="also q + k + v in its place")
    parser.add_argument("--seconds", type=float, default=1.0, help="a row")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for image, batch in zip(map(int, options.image.split(",")), map(int, options.batch.split(",")), strict=True):
        for pass_name in options.passes.split(","):
            for attention in (True, False) if options.without_attention else (True,):
                torch.compiler.reset()
                ms = milliseconds(options.model, pass_name, image, batch, attention, options.seconds)
                kind = "softmax" if attention else "none"
                print(f"{options.model} {kind:8} {pass_name:6} {image:4} x {image:<4} batch {batch:4} {ms:8.2f} ms"
                      f" {1e3 * batch / ms:9.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
