#!/usr/bin/env python3
"""The CLIP score of `mhla eval images` against transformers, on random images, prompts and weights.

    /tmp/clip/bin/python scripts/clip_check.py --folder /tmp/clip/run

Makes a small CLIP with a tokenizer of CLIP's kind in FOLDER, images of several sizes and their prompts. transformers
gets the images through Pillow as CLIP's own preprocessing has them: the shorter side to the size of the tower with a
bicubic filter, then the middle. Exit code 1 when the scores differ by more than --tolerance, relative. Needs torch,
transformers, Pillow, numpy.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CLIPConfig, CLIPModel

SIDE = 32
PROMPTS = ["A small HOUSE by the sea, 1999", "two dogs don't run", "ein Bär im Schnee", "a red car on a red road in a red town, and so on " * 4]
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    words = Regex(r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+""")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator([prompt.lower() for prompt in PROMPTS] * 3, trainer)
    # Every letter also ends a word, and the marks come last, as in CLIP's own file.
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for letter in sorted(alphabet):
        vocab.setdefault(f"{letter}</w>", len(vocab))
    marks = {mark: len(vocab) + i for i, mark in enumerate(("<|startoftext|>", "<|endoftext|>"))}
    vocab.update(marks)
    state["added_tokens"] = [dict(id=at, content=mark, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                             for mark, at in marks.items()]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    start, end = marks.items()
    tokenizer.post_processor = processors.RobertaProcessing(end, start, False, False)
    return tokenizer, start[1], end[1]


def make(folder):
    (folder / "images").mkdir(parents=True, exist_ok=True)
    tokenizer, start, end = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(2)
    size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)
    model = CLIPModel(CLIPConfig(
        projection_dim=48, text_config=dict(**size, vocab_size=end + 1, max_position_embeddings=24, bos_token_id=start, eos_token_id=end),
        vision_config=dict(**size, image_size=SIDE, patch_size=8))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    model.save_pretrained(folder)
    random = np.random.default_rng(0)
    shapes = [(32, 32), (64, 64), (150, 97), (33, 80), (20, 20), (512, 700)]
    for i in range(24):
        rows, columns = shapes[i % len(shapes)]
        coarse = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((columns, rows), Image.BICUBIC).save(folder / "images" / f"{i:03d}.png")
    (folder / "prompts.txt").write_text("".join(PROMPTS[i % len(PROMPTS)].strip() + "\n" for i in range(24)))


def pixels(path):
    image = Image.open(path)
    shorter = min(image.size)
    image = image.resize([SIDE if side == shorter else int(SIDE * side / shorter) for side in image.size], Image.BICUBIC)
    left, top = (round((side - SIDE) / 2.0) for side in image.size)
    values = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.float32) / 255
    return torch.from_numpy((values - np.float32(MEAN)) / np.float32(DEVIATION)).permute(2, 0, 1)


def theirs(folder):
    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(24)
    scores = []
    for path, prompt in zip(sorted((folder / "images").iterdir()), (folder / "prompts.txt").read_text().splitlines(), strict=True):
        with torch.no_grad():
            out = model(input_ids=torch.tensor([tokenizer.encode(prompt).ids]), pixel_values=pixels(path)[None])
        scores.append(max(100 * torch.cosine_similarity(out.image_embeds, out.text_embeds).item(), 0))
    return float(np.mean(scores))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--program", default="build/release/bin/mhla")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    make(options.folder)
    want = theirs(options.folder)
    words = [options.program, "eval", "images", "--samples", options.folder / "images", "--features", f"clip:{options.folder}",
             "--metrics", "clip", "--prompts", options.folder / "prompts.txt", "--json"]
    rows = subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True).stdout
    got = json.loads(rows.splitlines()[-1])["value"]
    difference = abs(got - want) / want
    print(f"CLIP score: mhla {got:.6f}, transformers {want:.6f}, difference {difference:.1e}")
    sys.exit(0 if difference <= options.tolerance else 1)


if __name__ == "__main__":
    main()
