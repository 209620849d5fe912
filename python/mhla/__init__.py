"""Multi-head linear attention (arXiv 2601.07832) for PyTorch, forward and backward on CPU and CUDA.

out = mhla.attention(q, k, v, mix, block_size=64)      # or grid= and blocks=, or causal=True
layer = mhla.nn.MHLA(384, 6, grid=(16, 16), blocks=(4, 4))
model, report = mhla.replace_attention(model, block_size=64)    # of timm, diffusers, transformers

Without the compiled library everything works with backend="torch".
"""

from . import _backend

_backend.load()

from . import _library, convert, distributed, nn  # noqa: E402  (the library first)
from ._backend import get_backend, set_backend  # noqa: E402
from ._bench import bench  # noqa: E402
from ._constrain import constrain_, constrain_after_step  # noqa: E402
from .analysis import analyze  # noqa: E402
from .families import load_denoiser, replace_attention, restore_attention, save_denoiser  # noqa: E402
from .functional import attention, get_num_threads, set_num_threads  # noqa: E402
from .mixing import constrain_mix_, init_causal_mix, init_mix, resample_mix  # noqa: E402
from .runs import Run, open_run  # noqa: E402
from .streaming import StreamingState  # noqa: E402

__version__ = _library.version()
__all__ = [
    "Run",
    "StreamingState",
    "analyze",
    "attention",
    "bench",
    "constrain_",
    "constrain_after_step",
    "constrain_mix_",
    "convert",
    "distributed",
    "get_backend",
    "get_num_threads",
    "init_causal_mix",
    "init_mix",
    "load_denoiser",
    "nn",
    "open_run",
    "replace_attention",
    "resample_mix",
    "restore_attention",
    "save_denoiser",
    "set_backend",
    "set_num_threads",
]
