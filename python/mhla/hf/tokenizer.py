"""The ``tokenizer.json`` of a run, with the token that runs end and begin documents with."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"


class MhlaTokenizer(PreTrainedTokenizerFast):
    """``bos_token``, ``eos_token`` and ``pad_token`` are ``<|endoftext|>`` where the vocabulary has it.

    Args:
        add_bos_token: texts begin with it, as ``mhla train lm`` and ``mhla eval lm`` have them; off unless told.
    """

    def __init__(self, *args: Any, add_bos_token: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        if END not in self.get_vocab():
            return
        for name in ("bos_token", "eos_token", "pad_token"):
            if getattr(self, name) is None:
                setattr(self, name, END)
        if add_bos_token:
            from tokenizers.processors import Sequence, TemplateProcessing

            inner: Any = self._tokenizer
            opening = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, self.convert_tokens_to_ids(END))])
            before = inner.post_processor
            inner.post_processor = opening if before is None else Sequence([before, opening])
