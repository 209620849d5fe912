#!/usr/bin/env python3
"""A training step of vit_256 in plain PyTorch with its softmax attention, for comparison with `mhla bench model`.

    scripts/gpu_vit.py [--image 32,64] [--batch 512] [--seconds 2]

The same layers, loss, clipping and AdamW, bf16 autocast, eager. Median wall time of a step, as `mhla bench model --model
vit_256 --attention mhla,softmax --pass train --device cuda --precision bf16` measures it.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from gpu_timing import median_ms


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, image, patch=2, dim=192, depth=6, heads=3, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.place = nn.Parameter(torch.randn(1, (image // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2).contiguous() + self.place  # else every norm copies
        return self.head(self.norm(self.blocks(x).mean(1)))


def milliseconds(image, batch, seconds):
    model = Vit(image).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    images = torch.randn(batch, 1, image, image, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return median_ms(step, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="32,64", help="sides; a token is 2 x 2 pixels")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="a row")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for image in map(int, options.image.split(",")):
        ms = milliseconds(image, options.batch, options.seconds)
        print(f"{(image // 2) ** 2:6} tokens  {ms:8.2f} ms a step  {1e3 * options.batch / ms:9.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
