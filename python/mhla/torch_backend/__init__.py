"""The operator and its relatives as plain torch code: slow, but differentiable any number of times, on every device, and
made of operators that torch.func, torch.export, torch.jit and ONNX know. Chosen with ``backend="torch"``."""

from .attention import attend
from .parts import norm, rope
from .streaming import TorchStreamingState

__all__ = ["TorchStreamingState", "attend", "norm", "rope"]
