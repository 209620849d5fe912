"""Attention over the frames, rows and columns of a video: 3D blocks, 3D rotary positions, a gate."""

import torch

import mhla


def main() -> None:
    torch.manual_seed(0)
    frames, rows, columns = 5, 12, 20  # 1200 tokens
    layer = mhla.nn.MHLA.video(96, 4, (frames, rows, columns), (5, 3, 4), gated=True)
    video = torch.randn(1, frames * rows * columns, 96)
    out = layer(video)
    out.square().mean().backward()
    print(
        f"{tuple(video.shape)} -> {tuple(out.shape)}, {layer.mix.shape[0]} blocks, |dmix| = {layer.mix.grad.norm().item():.2e}"
    )
    assert out.shape == video.shape and torch.isfinite(layer.mix.grad).all()


if __name__ == "__main__":
    main()
