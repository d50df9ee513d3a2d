"""The adapters that ship, by name; nothing of a library is imported before its adapter is used."""

import importlib.util
import sys
from types import ModuleType

from attendax import extras

from .adapter import Adapter
from .jax_libraries import ADAPTERS as IN_JAX
from .mlx_library import ADAPTERS as MLX
from .onnx_reference import ADAPTERS as ONNX
from .ours import ADAPTERS as OURS
from .torch_libraries import ADAPTERS as IN_TORCH

ADAPTERS: dict[str, Adapter] = OURS | IN_JAX | IN_TORCH | MLX | ONNX


def adapter_for(path: str) -> str | None:
    """The name of the adapter that is made for a "module:name"."""
    return next((name for name, adapter in ADAPTERS.items() if adapter.function == path), None)


def shipped(name: str) -> Adapter:
    """An adapter that ships, with what is known of its library.

    Raises:
        KeyError: there is none of that name.
        ModuleNotFoundError: this installation lacks the folder benchmarks.
    """
    adapter = ADAPTERS[name]
    if name in OURS:
        return adapter
    found = matrix()
    return adapter._replace(documented=found.DOCUMENTED.get(name, ()), known=found.KNOWN.get(name, ()))


def matrix() -> ModuleType:
    """``benchmarks/matrix``: what is known of other libraries, and the run over all that are installed.

    It is loaded under a name of its own: a module of the user may be called as one in that folder is.

    Raises:
        ModuleNotFoundError: this installation lacks the folder benchmarks.
    """
    name = "attendax_matrix"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, extras.benchmarks() / "matrix" / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
