"""The adapters that ship, by name; nothing of a library is imported before its adapter is used."""

from .adapter import Adapter
from .contracts import DOCUMENTED
from .findings import KNOWN
from .jax_libraries import ADAPTERS as IN_JAX
from .mlx_library import ADAPTERS as MLX
from .more_findings import KNOWN as MORE
from .onnx_reference import ADAPTERS as ONNX
from .ours import ADAPTERS as OURS
from .torch_libraries import ADAPTERS as IN_TORCH

ADAPTERS: dict[str, Adapter] = {
    name: adapter._replace(documented=DOCUMENTED.get(name, ()), known=(KNOWN | MORE).get(name, ()))
    for name, adapter in (OURS | IN_JAX | IN_TORCH | MLX | ONNX).items()
}


def adapter_for(path: str) -> str | None:
    """The name of the adapter that is made for a "module:name"."""
    return next((name for name, adapter in ADAPTERS.items() if adapter.function == path), None)
