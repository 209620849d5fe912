"""A causal layer: the prompt in one pass, then token by token from a state that never looks back at the tokens."""

import torch

import mhla


def main() -> None:
    torch.manual_seed(0)
    layer = mhla.nn.MHLA.lm(256, 4, chunk=64, max_tokens=1024).eval()
    tokens = torch.randn(1, 300, 256)
    with torch.no_grad():
        at_once = layer(tokens)

    state = layer.streaming_state(batch=1)
    prompt = layer.stream(tokens[:, :200], state)
    steps = [layer.stream(tokens[:, t : t + 1], state) for t in range(200, 300)]
    streamed = torch.cat([prompt, *steps], 1)

    other = state.fork()  # two continuations of one text
    layer.stream(torch.randn(1, 5, 256), other)
    print(f"{state.positions[0]} tokens in {state.nbytes / 2**20:.1f} MiB, the fork is at {other.positions[0]}")
    difference = (streamed - at_once).abs().max().item()
    print(f"largest difference from one pass: {difference:.1e}")
    assert difference <= 1e-4 * at_once.abs().max().item()


if __name__ == "__main__":
    main()
