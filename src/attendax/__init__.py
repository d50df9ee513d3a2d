"""Attention with one written definition: fast functions for JAX, a specification in NumPy, and tests for any other.

Each name is imported when it is first asked for: the command line answers, and can be interrupted, before JAX is there.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import compat as compat
    from . import conformance as conformance
    from . import encoders as encoders
    from . import learn as learn
    from . import masks as masks
    from . import ops as ops
    from . import params as params
    from . import pictures as pictures
    from . import rotary as rotary
    from . import scores as scores
    from . import sharding as sharding
    from . import spec as spec
    from .dispatch import attention as attention
    from .dispatch import merge as merge
    from .explanation import Explanation as Explanation
    from .explanation import explain as explain
    from .inspection import AttentionStats as AttentionStats
    from .inspection import attention_stats as attention_stats
    from .inspection import weights_at as weights_at

_FUNCTIONS = {
    "attention": "dispatch", "merge": "dispatch", "Explanation": "explanation", "explain": "explanation",
    "AttentionStats": "inspection", "attention_stats": "inspection", "weights_at": "inspection",
}  # fmt: skip
_MODULES = (
    "compat", "conformance", "encoders", "learn", "masks", "ops", "params", "pictures", "rotary", "scores", "sharding",
    "spec",
)  # fmt: skip

__version__ = "0.3.0"

__all__ = sorted(["__version__", *_FUNCTIONS, *_MODULES])


def __dir__() -> list[str]:
    return __all__


def _elsewhere(name: str) -> str:
    """The place of a name that is not here: in NumPy, in JAX, among masks or scores."""
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}"):  # a module that is imported just now
        return ""
    rooms = ("spec", "ops", "masks", "scores")
    found = [room for room in rooms if hasattr(importlib.import_module(f".{room}", __name__), name)]
    return f"; there is {' and '.join(f'{__name__}.{room}.{name}' for room in found)}" if found else ""


if not TYPE_CHECKING:  # a type checker would take it for every name there could be

    def __getattr__(name: str) -> Any:
        if name in _FUNCTIONS:
            value = getattr(importlib.import_module(f".{_FUNCTIONS[name]}", __name__), name)
        elif name in _MODULES:
            value = importlib.import_module(f".{name}", __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_elsewhere(name)}")
        globals()[name] = value
        return value
