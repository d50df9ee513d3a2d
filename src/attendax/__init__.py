"""Attention with a proof: one written meaning in NumPy, the same in JAX, every gradient cross-checked."""

from . import conformance, encoders, masks, ops, params, scores, spec
from .kernels.attention import attention, merge
from .kernels.explain import Explanation, explain
from .kernels.inspection import AttentionStats, attention_stats, weights_at

__version__ = "0.1.0"

__all__ = [
    "AttentionStats",
    "Explanation",
    "__version__",
    "attention",
    "attention_stats",
    "conformance",
    "encoders",
    "explain",
    "masks",
    "merge",
    "ops",
    "params",
    "scores",
    "spec",
    "weights_at",
]


def __dir__() -> list[str]:
    return __all__
