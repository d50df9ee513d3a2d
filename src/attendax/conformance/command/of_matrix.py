"""The matrix: ``attendax check --all-installed`` and ``--all-models``, which ``benchmarks/matrix`` runs."""

import importlib.util
import sys
from types import ModuleType

from attendax import extras


def matrix() -> ModuleType:
    """``benchmarks/matrix``, under a name of its own: a module of the user may be called as one in that folder is.

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
