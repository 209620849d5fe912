"""generate() of a converted LlamaForCausalLM: with and without a cache, beams, padding, assisted decoding."""

import pytest
import torch
from test_families import llama

import mhla


@pytest.fixture
def model():
    converted, _ = mhla.replace_attention(llama().eval(), block_size=8)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.mul_(2.0 if parameter.dim() == 2 and parameter.shape[0] != parameter.shape[1] else 1.0)
        for layer in converted.model.layers:
            layer.self_attn.mix.copy_(torch.rand_like(layer.self_attn.mix).tril())
    return converted


def prompt(length, seed=0, batch=1):
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def ask(model, tokens, **options):
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    return model.generate(tokens, attention_mask=options.pop("attention_mask", torch.ones_like(tokens)), **options)


def test_a_cache_changes_nothing(model):
    tokens = prompt(13, batch=2)
    cached = ask(model, tokens)
    assert cached.shape == (2, 33)
    assert torch.equal(cached, ask(model, tokens, use_cache=False))
    with torch.no_grad():
        whole = model(cached).logits
        half = model(cached[:, :17], use_cache=True)
        rest = model(cached[:, 17:], past_key_values=half.past_key_values).logits
    torch.testing.assert_close(torch.cat([half.logits, rest], 1), whole, rtol=1e-4, atol=1e-5)


def test_beams(model):
    tokens = prompt(9)
    assert torch.equal(ask(model, tokens, num_beams=3), ask(model, tokens, num_beams=3, use_cache=False))


def test_padding_on_the_left_changes_nothing(model):
    short, long = prompt(7), prompt(13, seed=1)
    padded = torch.cat([torch.cat([torch.zeros(1, 6, dtype=torch.int64), short], 1), long])
    mask = torch.ones_like(padded)
    mask[0, :6] = 0
    together = ask(model, padded, attention_mask=mask)
    assert torch.equal(together[0, 13:], ask(model, short)[0, 7:])
    assert torch.equal(together[1, 13:], ask(model, long)[0, 13:])


def test_assisted_decoding(model):
    draft = llama().eval()
    tokens = prompt(9)
    assert torch.equal(ask(model, tokens, assistant_model=draft), ask(model, tokens))


def test_longer_than_the_matrix():
    model, _ = mhla.replace_attention(llama().eval(), block_size=4, max_tokens=8)
    tokens = prompt(13)
    assert torch.equal(ask(model, tokens), ask(model, tokens, use_cache=False))
