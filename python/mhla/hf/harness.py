"""The evaluation harness, which finds our models: ``lm_eval`` itself imports no other packages.

    python -m mhla.hf.harness --model hf --model_args pretrained=run/,backend=causal,add_bos_token=True --tasks my_task

All flags are those of ``lm_eval``. Models are registered by the package that this module is in.
"""

from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    cli_evaluate()
