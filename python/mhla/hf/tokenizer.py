"""The ``tokenizer.json`` of a run, with the token that runs end and begin documents with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"


class MhlaTokenizer(PreTrainedTokenizerFast):
    """What ``AutoTokenizer`` asks for the tokenizer of a run. It answers with a ``PreTrainedTokenizerFast``: transformers
    would build another tokenizer from the vocabulary of a class of its own, without what splits the text."""

    @classmethod
    def from_pretrained(cls, folder: Any, *args: Any, add_bos_token: bool | None = False, **options: Any) -> Any:
        """``bos_token``, ``eos_token`` and ``pad_token`` are ``<|endoftext|>`` where the vocabulary has it.

        Args:
            folder: of the run.
            add_bos_token: texts begin with it, as ``mhla train lm`` and ``mhla eval lm`` have them; off unless told.
        """
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise RuntimeError(f"MhlaTokenizer: {file} is missing, expected a language model over text with a tokenizer.json")
        made: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))
        if END not in made.get_vocab():
            return made
        made.bos_token = made.eos_token = made.pad_token = END
        if add_bos_token:
            from tokenizers.processors import Sequence, TemplateProcessing

            opening = TemplateProcessing(single=f"{END} $A", special_tokens=[(END, made.convert_tokens_to_ids(END))])
            before = made._tokenizer.post_processor
            made._tokenizer.post_processor = opening if before is None else Sequence([before, opening])
        return made
