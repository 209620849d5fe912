"""Runs of ``mhla train`` as models of transformers.

    AutoModelForCausalLM.from_pretrained("run/")            # of mhla train lm, after `import mhla.hf`
    AutoModelForImageClassification.from_pretrained("run/") # of mhla train classify (DeiT, VLT)
    model.generate(tokens, max_new_tokens=50)
    model.save_pretrained("other/")                         # which mhla generate, eval and predict open

A run and a folder of ``save_pretrained`` have the same ``config.json`` and ``model.safetensors``. ``generate`` keeps streaming
states in an :class:`MhlaCache`: greedy search, sampling, beams and assisted decoding. For batches with padding, and where
gradients are wanted, a cache of transformers holds features and values of all tokens instead, and a new token weighs all
earlier ones.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoTokenizer

from .cache import MhlaCache
from .images import MhlaForImageClassification, MhlaImageConfig
from .language import MhlaConfig, MhlaForCausalLM
from .tokenizer import MhlaTokenizer

__all__ = ["MhlaCache", "MhlaConfig", "MhlaForCausalLM", "MhlaForImageClassification", "MhlaImageConfig", "MhlaTokenizer",
           "save_run"]  # fmt: skip


def save_run(model: MhlaForCausalLM | MhlaForImageClassification, folder: str | Path) -> None:
    """``config.json`` and one ``model.safetensors``, as ``mhla generate``, ``eval`` and ``predict`` read them: what
    ``model.save_pretrained`` writes, never in shards. The ``tokenizer.json`` of a run belongs beside them."""
    model.save_pretrained(folder, max_shard_size="1TB")


AutoConfig.register("mhla", MhlaConfig, exist_ok=True)
AutoConfig.register("mhla_image", MhlaImageConfig, exist_ok=True)
AutoModelForCausalLM.register(MhlaConfig, MhlaForCausalLM, exist_ok=True)
AutoModelForImageClassification.register(MhlaImageConfig, MhlaForImageClassification, exist_ok=True)
AutoTokenizer.register(MhlaConfig, fast_tokenizer_class=MhlaTokenizer, exist_ok=True)
