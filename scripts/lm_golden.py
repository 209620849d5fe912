#!/usr/bin/env python3
"""Writes tests/golden/language/lm.safetensors: tiny language models with random weights, computed in f64 by the plain torch code
of mhla.hf, and with softmax attention by transformers' Llama.

    python3 -m venv /tmp/lm && /tmp/lm/bin/pip install torch transformers safetensors
    PYTHONPATH=python /tmp/lm/bin/python scripts/lm_golden.py tests/golden/language/lm.safetensors

Keys are `<case>/<name>`: in.tokens, param.* under the names of a run's model.safetensors, out the logits, out.streamed the same
token by token from a cache, dout and grad.param.*. The metadata of a case has the config.json.
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mhla.hf import MhlaConfig, MhlaForCausalLM

SIZES = dict(model="mhla_10m", vocab=17, dim=8, layers=2, heads=2, mlp=12, match=False, context=16, chunk=4, expand_k=1.0)
CASES = {  # tokens, of which so many come at once; what differs from SIZES
    "lm": (13, 5, dict()),
    "lm_whole_context": (16, 4, dict(layers=1, mix_range=[0.0, 2.0], norm_eps=1e-3)),
    "lm_one_chunk": (3, 1, dict(layers=1, rope_base=100.0, norm_eps=0.1)),  # else the norm of a head cancels its mix
    "lm_kv_heads": (13, 6, dict(kv_heads=1, mix_per_head=True)),
    "lm_plain": (11, 4, dict(layers=1, rope=False, gate=False, tied=False, features="elu1")),
    "lm_hedgehog": (9, 8, dict(layers=1, features="hedgehog", learn_mix=False)),
    "lm_short_conv": (13, 2, dict(layers=1, short_conv=4, expand_v=2.0)),
    "lm_official": (14, 7, dict(layers=1, official=True)),
    "lm_linear": (13, 9, dict(attention="linear")),
    "lm_matched": (7, 3, dict(layers=1, match=True, mlp=40, expand_v=3.0)),
    "lm_softmax": (13, 5, dict(attention="softmax")),
}


def llama(c):
    config = LlamaConfig(vocab_size=c["vocab"], hidden_size=c["dim"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                         intermediate_size=c["mlp"], max_position_embeddings=c["context"], rms_norm_eps=c["norm_eps"],
                         rope_theta=c["rope_base"], tie_word_embeddings=True, attention_bias=False)  # fmt: skip
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def run_names(tensors):
    """Llama's names as those of a run, whose q, k and v are one."""
    pairs = (("embed_tokens", "embeddings"), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "mlp_norm"),
             ("self_attn.o_proj", "attn.proj"))  # fmt: skip
    found = {}
    for name, value in tensors.items():
        for theirs, ours in pairs:
            name = name.replace(theirs, ours)
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            found[name.replace("self_attn.q_proj", "attn.qkv")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name and name != "lm_head.weight":
            found[name] = value
    return found


def spread(model):
    """Weights that show, as a file of f32 holds them: norms off 1, a mix that is not its initial one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".mix"):
                if parameter.requires_grad:
                    parameter.copy_(torch.rand_like(parameter).tril())
            elif parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter[0].numel() ** 0.5)
    return model.double().eval()


def streamed(model, tokens, prompt):
    cache, logits = None, []
    with torch.no_grad():
        for piece in tokens.split([prompt] + [1] * (tokens.shape[1] - prompt), 1):
            said = model(piece, past_key_values=cache, use_cache=True)
            cache = said.past_key_values
            logits.append(said.logits)
    return torch.cat(logits, 1)


def main():
    tensors, metadata = {}, {}
    for seed, (name, (length, prompt, options)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        fields = MhlaConfig(**{**SIZES, **options, "attention": "mhla"}).fields() | options
        softmax = fields["attention"] == "softmax"
        model = spread(llama(fields) if softmax else MhlaForCausalLM(MhlaConfig(backend="torch", **fields)))
        own = run_names if softmax else dict
        case = {f"param.{key}": value.clone() for key, value in own(dict(model.named_parameters())).items()}
        tokens = torch.randint(fields["vocab"], (2, length))
        out = model(tokens, use_cache=False).logits
        dout = torch.randn(out.shape).double()
        out.backward(dout)
        gradients = own({key: value.grad for key, value in model.named_parameters() if value.requires_grad})
        case.update({"in.tokens": tokens, "out": out, "out.streamed": streamed(model, tokens, prompt), "dout": dout})
        case.update({f"grad.param.{key}": value for key, value in gradients.items()})
        for key, value in case.items():
            narrow = value.float() if value.is_floating_point() else value
            tensors[f"{name}/{key}"] = narrow.detach().contiguous()
        metadata[name] = json.dumps({**fields, "prompt": prompt})
    save_file(tensors, sys.argv[1], metadata)


if __name__ == "__main__":
    main()
