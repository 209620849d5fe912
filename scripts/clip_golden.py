#!/usr/bin/env python3
"""Writes tests/golden/image/clip.safetensors: tiny CLIP models with random weights, computed by transformers' CLIPModel
and, under OpenAI's names, by a transcription of OpenAI's network over torch's own MultiheadAttention.

    python3 -m venv /tmp/clip && /tmp/clip/bin/pip install torch transformers safetensors
    /tmp/clip/bin/python scripts/clip_golden.py tests/golden/image/clip.safetensors

Keys are `<case>/<name>`: in.pixels, in.ids, param.* under published names, out.image and out.text the projected
embeddings before they are normalised, out.logits_per_image with them. The metadata of a case has the config.json.
"""
import collections
import json
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPConfig, CLIPModel


class Block(nn.Module):
    def __init__(self, width, heads, mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(collections.OrderedDict(
            c_fc=nn.Linear(width, 4 * width), gelu=QuickGelu(), c_proj=nn.Linear(4 * width, width)))
        self.ln_2 = nn.LayerNorm(width)
        self.mask = mask

    def forward(self, x):  # [N, B, C]
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=self.mask)[0]
        return x + self.mlp(self.ln_2(x))


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Blocks(nn.Module):
    def __init__(self, width, layers, heads, mask=None):
        super().__init__()
        self.resblocks = nn.Sequential(*[Block(width, heads, mask) for _ in range(layers)])


class Visual(nn.Module):
    def __init__(self, image, patch, width, layers, heads, out):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn((image // patch) ** 2 + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Blocks(width, layers, heads)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.randn(width, out))

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], 1) + self.positional_embedding
        x = self.transformer.resblocks(self.ln_pre(x).transpose(0, 1)).transpose(0, 1)
        return self.ln_post(x[:, 0]) @ self.proj


class OpenAIClip(nn.Module):
    def __init__(self, image, patch, vision, text, context, vocab, out):
        super().__init__()
        self.visual = Visual(image, patch, *vision, out)
        mask = torch.full((context, context), float("-inf")).triu_(1)
        self.transformer = Blocks(*text, mask)
        self.token_embedding = nn.Embedding(vocab, text[0])
        self.positional_embedding = nn.Parameter(torch.randn(context, text[0]))
        self.ln_final = nn.LayerNorm(text[0])
        self.text_projection = nn.Parameter(torch.randn(text[0], out))
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def encode_text(self, ids):
        x = self.token_embedding(ids) + self.positional_embedding
        x = self.ln_final(self.transformer.resblocks(x.transpose(0, 1)).transpose(0, 1))
        return x[torch.arange(len(x)), ids.argmax(-1)] @ self.text_projection


def spread(module):
    """Weights that show: norms off 1, biases off 0."""
    for name, parameter in module.named_parameters():
        if name.endswith("logit_scale"):
            continue
        around = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
        fan = parameter[0].numel() if parameter.dim() > 1 else 25
        parameter.data = around + torch.randn_like(parameter) / fan**0.5


def ids_of(vocab, context):
    ids = torch.randint(1, vocab - 2, (3, context))
    for row, end in enumerate((context - 1, context // 2, 2)):
        ids[row, 0] = vocab - 2
        ids[row, end:] = 0
        ids[row, end] = vocab - 1
    return ids


def logits(image, text, scale):
    image, text = nn.functional.normalize(image, dim=-1), nn.functional.normalize(text, dim=-1)
    return scale.exp() * image @ text.T


def transformers_case(activation):
    config = CLIPConfig(
        projection_dim=24,
        text_config=dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=40,
                         max_position_embeddings=11, hidden_act=activation, bos_token_id=38, eos_token_id=39,
                         pad_token_id=0, projection_dim=24),
        vision_config=dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=5, intermediate_size=56,
                           image_size=24, patch_size=8, hidden_act=activation, projection_dim=24))
    model = CLIPModel(config).eval()
    spread(model)
    pixels, ids = torch.randn(3, 3, 24, 24), ids_of(40, 11)
    with torch.no_grad():
        image = model.visual_projection(model.vision_model(pixels).pooler_output)
        text = model.text_projection(model.text_model(ids).pooler_output)
        whole = model(input_ids=ids, pixel_values=pixels).logits_per_image
    torch.testing.assert_close(whole, logits(image, text, model.logit_scale))
    return model, pixels, ids, image, text, whole, json.dumps(json.loads(config.to_json_string(use_diff=False)))


def openai_case():
    model = OpenAIClip(16, 8, (64, 1, 1), (64, 1, 1), 9, 50, 16).eval()
    spread(model)
    pixels, ids = torch.randn(2, 3, 16, 16), ids_of(50, 9)[:2]
    with torch.no_grad():
        image, text = model.visual(pixels), model.encode_text(ids)
    return model, pixels, ids, image, text, logits(image, text, model.logit_scale), ""


def main():
    torch.manual_seed(7)
    tensors, metadata = {}, {}
    for name, case in (("clip_quick_gelu", lambda: transformers_case("quick_gelu")),
                       ("clip_gelu", lambda: transformers_case("gelu")), ("clip_openai", openai_case)):
        model, pixels, ids, image, text, whole, config = case()
        parts = {"in.pixels": pixels, "in.ids": ids, "out.image": image, "out.text": text, "out.logits_per_image": whole}
        parts.update({f"param.{key}": value for key, value in model.state_dict().items()})
        tensors.update({f"{name}/{key}": value.detach().contiguous() for key, value in parts.items()})
        metadata[name] = json.dumps({"family": "clip", "names": "openai" if name == "clip_openai" else "transformers",
                                     "config": json.loads(config) if config else None})
    save_file(tensors, sys.argv[1], metadata)


if __name__ == "__main__":
    main()
