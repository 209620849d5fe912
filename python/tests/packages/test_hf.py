"""mhla.hf: models of transformers with the weights of `mhla train lm`, and the program's own numbers where it is built."""

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import mhla

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("mhla.hf")
PROGRAM = Path(os.environ.get("MHLA_PROGRAM", Path(__file__).parents[3] / "build/release/bin/mhla"))


def config(**options):
    return hf.MhlaConfig(**{**dict(vocab=97, dim=48, layers=2, heads=2, mlp=64, match=False, context=64, chunk=8), **options})


def made(**options):
    model = hf.MhlaForCausalLM(config(**options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mix"):
                parameter.copy_(torch.rand_like(parameter).tril())
            elif parameter.dim() == 2:
                parameter.mul_(5)
    return model


def prompt(length, seed=0, batch=1):
    return torch.randint(1, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def ask(model, tokens, mask=None, **options):
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    return model.generate(tokens, attention_mask=torch.ones_like(tokens) if mask is None else mask, **options)


VARIANTS = [dict(), dict(kv_heads=1), dict(rope=False, features="elu1"), dict(features="hedgehog"), dict(gate=False, tied=False),
            dict(attention="linear"), dict(mix_per_head=True), dict(official=True), dict(short_conv=4)]  # fmt: skip


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_cache_changes_nothing(options):
    model, tokens = made(**options), prompt(13, batch=2)
    cached = ask(model, tokens)
    assert cached.shape == (2, 29)
    assert torch.equal(cached, ask(model, tokens, use_cache=False))
    with torch.no_grad():
        whole = model(cached, use_cache=False).logits
        half = model(cached[:, :17])
        rest = model(cached[:, 17:], past_key_values=half.past_key_values).logits
    torch.testing.assert_close(torch.cat([half.logits, rest], 1), whole, rtol=1e-3, atol=1e-4)


def test_beams_padding_and_assisted_decoding():
    model, tokens = made(), prompt(9)
    assert torch.equal(ask(model, tokens, num_beams=3), ask(model, tokens, num_beams=3, use_cache=False))
    assert torch.equal(ask(model, tokens, assistant_model=made(layers=1)), ask(model, tokens))
    short, long = prompt(7), prompt(13, seed=1)
    padded, mask = torch.cat([torch.nn.functional.pad(short, (6, 0)), long]), torch.ones(2, 13, dtype=torch.int64)
    mask[0, :6] = 0
    together = ask(model, padded, mask)
    assert torch.equal(together[0, 13:], ask(model, short)[0, 7:])
    assert torch.equal(together[1, 13:], ask(model, long)[0, 13:])


def test_sampling():
    model, tokens = made(), prompt(9, batch=2)
    drawn = []
    for options in (dict(), dict(use_cache=False), dict(top_k=5), dict(temperature=3.0)):
        torch.manual_seed(3)
        drawn.append(ask(model, tokens, do_sample=True, top_k=options.pop("top_k", 0), **options))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], ask(model, tokens))
    assert not torch.equal(drawn[2], drawn[0]) and not torch.equal(drawn[3], drawn[0])


def test_beams_of_batches_and_sampled_beams():
    model, tokens = made(), prompt(9, batch=2)
    together = ask(model, tokens, num_beams=3, num_return_sequences=2)
    assert together.shape == (4, 25)
    for row in range(2):
        assert torch.equal(together[2 * row : 2 * row + 2], ask(model, tokens[row : row + 1], num_beams=3, num_return_sequences=2))
    torch.manual_seed(1)
    assert ask(model, tokens, num_beams=2, do_sample=True).shape == (2, 25)


def test_compiled():
    model, tokens = made(), prompt(24, batch=2)
    model.train()
    want = model(tokens, labels=tokens)
    want.loss.backward()
    gradient = model.model.layers[0].attn.mix.grad.clone()
    model.zero_grad()
    got = torch.compile(model, backend="aot_eager")(tokens, labels=tokens)
    torch.testing.assert_close(got.logits, want.logits)
    got.loss.backward()
    torch.testing.assert_close(model.model.layers[0].attn.mix.grad, gradient)


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = made().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    mhla.constrain_after_step(optimizer, model)
    data = torch.utils.data.DataLoader([prompt(16, seed)[0] for seed in range(8)], batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    before = accelerator.unwrap_model(model).model.layers[0].attn.mix.detach().clone()
    for tokens in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(tokens, labels=tokens).loss)
            optimizer.step()
            optimizer.zero_grad()
    mix = accelerator.unwrap_model(model).model.layers[0].attn.mix.detach()
    assert not torch.equal(mix, before) and 0 <= mix.min() and mix.max() <= 1 and mix.triu(1).abs().sum() == 0
    accelerator.save_state(str(tmp_path))
    with torch.no_grad():
        mix.zero_()
    accelerator.load_state(str(tmp_path))
    assert accelerator.unwrap_model(model).model.layers[0].attn.mix.abs().sum() > 0


def test_states_and_features_are_two_caches():
    model, tokens = made(), prompt(30, batch=2)
    with torch.no_grad():
        states = model(tokens[:, :20]).past_key_values
        want = model(tokens, use_cache=False).logits
    features = model(tokens[:, :20]).past_key_values  # with gradients
    assert type(states) is hf.MhlaCache and type(features) is transformers.DynamicCache
    assert states.get_seq_length() == features.get_seq_length() == 20 and states.nbytes > 0
    for cache in (states, features):
        with torch.no_grad():
            rest = model(tokens[:, 20:], past_key_values=cache).logits
        torch.testing.assert_close(rest, want[:, 20:], rtol=1e-3, atol=1e-4)
    states.crop(-5)
    with pytest.raises(RuntimeError, match="expected 0 or a negative number"):
        states.crop(5)
    states.batch_select_indices(torch.tensor([1, 0]))
    with torch.no_grad():
        again = model(tokens[[1, 0], 25:], past_key_values=states).logits
    torch.testing.assert_close(again, want[[1, 0], 25:], rtol=1e-3, atol=1e-4)
    with pytest.raises(RuntimeError, match="padding beside an MhlaCache"), torch.no_grad():
        model(tokens[:, :1], past_key_values=states, attention_mask=torch.cat([torch.zeros(2, 1), torch.ones(2, 30)], 1))


def test_saved_and_loaded(tmp_path):
    model, tokens = made(), prompt(20)
    want = model(tokens).logits
    model.save_pretrained(tmp_path / "hf")
    auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert type(auto) is hf.MhlaForCausalLM
    torch.testing.assert_close(auto(tokens).logits, want)
    hf.save_run(model, tmp_path / "run")
    written = json.loads((tmp_path / "run/config.json").read_text())  # every field: the program's own defaults may be others
    assert {name: written[name] for name in model.config.fields()} == {**model.config.fields(), "mix_range": [0.0, 1.0]}
    torch.testing.assert_close(hf.MhlaForCausalLM.from_pretrained(tmp_path / "run").eval()(tokens).logits, want)
    torch.testing.assert_close(copy.deepcopy(model)(tokens).logits, want)
    with pytest.raises(RuntimeError, match="attention is 'softmax', expected lm and mhla or linear"):
        hf.MhlaConfig(attention="softmax")
    with pytest.raises(RuntimeError, match="at most"):
        model(prompt(65))


def test_training():
    model, tokens = made().train(), prompt(32, batch=2)
    out = model(tokens, labels=tokens)
    want = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(out.loss, want)
    out.loss.backward()
    gradient = model.model.layers[0].attn.mix.grad.clone()
    assert gradient.abs().sum() > 0
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    torch.testing.assert_close(model.model.layers[0].attn.mix.grad, gradient)
    assert mhla.constrain_(model) == 2


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    data = [{"input_ids": prompt(16, seed)[0], "labels": prompt(16, seed)[0]} for seed in range(8)]
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True)
    model = made()
    before = model.model.layers[0].attn.mix.clone()
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    assert not torch.equal(model.model.layers[0].attn.mix, before)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    torch.testing.assert_close(saved.model.layers[0].attn.mix, model.model.layers[0].attn.mix)


def test_lora():
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(made().train(), peft.LoraConfig(target_modules=["qkv", "down_proj"], r=2))
    tuned(prompt(16), labels=prompt(16)).loss.backward()
    assert all(p.grad is not None for name, p in tuned.named_parameters() if "lora" in name)


@pytest.mark.parametrize("options, width", [
    (dict(dim=64, heads=2, kv_heads=1, mlp=512, expand_v=2.0), 480),
    (dict(dim=96, heads=2, short_conv=4, mlp=512, expand_v=3.0, features="hedgehog"), 320),
    (dict(dim=128, heads=1, mlp=256, expand_k=1.0, features="hadamard"), 32),
    (dict(dim=64, heads=2, mlp=96), 96),
])  # fmt: skip
def test_widths_are_those_of_the_program(options, width):
    """What `mhla train lm --set ...` gave."""
    assert hf.MhlaConfig(**options).mlp_width() == width


@pytest.mark.skipif(not PROGRAM.is_file(), reason=f"there is no {PROGRAM}")
def test_a_run_of_the_program(tmp_path):
    text = "It was a dark and stormy night; the rain fell in torrents. "
    (tmp_path / "text.txt").write_text(text * 40)
    (tmp_path / "held.txt").write_text(text)
    mhla_program = lambda *flags: subprocess.run([PROGRAM, *flags, "--threads", "1"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    fields = "dim=64 layers=2 heads=2 mlp=96 chunk=8".split()
    mhla_program("train", "lm", "--data", "text.txt", "--tokenizer", "bytes", "--model", "mhla_10m", *(x for f in fields for x in ("--set", f)),
                 "--context", "64", "--max-steps", "5", "--batch", "2", "--lr", "1e-2", "--out", "run", "--eval-tokens", "64")  # fmt: skip
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert isinstance(model, hf.MhlaForCausalLM) and not any(loading.values()), loading
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    loss = lambda folder: json.loads(mhla_program("eval", "lm", "--run", folder, "--data", "held.txt", "--json").splitlines()[0])["loss"]
    tokens = torch.tensor([[end, *tokenizer.encode(text), end]])
    got = model(tokens, labels=tokens).loss.item()
    assert abs(got - loss("run")) <= 1e-4 * got
    written = json.loads(mhla_program("generate", "--run", "run", "--prompt", "It was", "--greedy", "--max-tokens", "24", "--json").splitlines()[0])
    start = torch.tensor([[end, *tokenizer.encode("It was")]])
    assert tokenizer.decode(ask(model, start, max_new_tokens=24)[0, start.shape[1] :]) == written["text"]

    # And the other way round.
    model.save_pretrained(tmp_path / "back")
    (tmp_path / "back/tokenizer.json").write_bytes((tmp_path / "run/tokenizer.json").read_bytes())
    again = json.loads(mhla_program("generate", "--run", "back", "--prompt", "It was", "--greedy", "--max-tokens", "24", "--json").splitlines()[0])
    assert again["text"] == written["text"]
