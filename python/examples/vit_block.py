"""MHLA instead of softmax attention in a timm-style ViT block: one line changes."""

import torch
from torch import nn

import mhla


class Block(nn.Module):
    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = attention
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, N, dim]
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def main() -> None:
    torch.manual_seed(0)
    # timm: self.attn = Attention(dim, num_heads=3)
    block = Block(192, mhla.nn.MHLA(192, 3, grid=(14, 14), blocks=(4, 4), lepe=3))
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    images = torch.randn(4, 14 * 14, 192)
    for step in range(3):
        loss = (block(images) - images.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        block.attn.constrain_()
        print(f"step {step}: loss {loss.item():.4f}")
    assert torch.isfinite(loss)


if __name__ == "__main__":
    main()
