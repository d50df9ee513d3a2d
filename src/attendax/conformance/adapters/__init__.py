"""The adapters that ship, by name; nothing of a library is imported before its adapter is used."""

from .implementation import Adapter
from .jax_libraries import ADAPTERS as IN_JAX
from .numpy_libraries import ADAPTERS as IN_NUMPY
from .torch_libraries import ADAPTERS as IN_TORCH

ADAPTERS: dict[str, Adapter] = IN_JAX | IN_TORCH | IN_NUMPY


def adapter_for(path: str) -> str | None:
    """The name of the adapter that is made for a "module:name"."""
    return next((name for name, adapter in ADAPTERS.items() if adapter.function == path), None)


def shipped(name: str) -> Adapter:
    """An adapter that ships, with the facts that are known of its library."""
    from . import known

    return ADAPTERS[name]._replace(documented=known.DOCUMENTED.get(name, ()), known=known.KNOWN.get(name, ()))
