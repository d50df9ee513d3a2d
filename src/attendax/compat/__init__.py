"""Attention under the signatures of other libraries: jax.nn, flax (nnx and linen), equinox.

``docs/adopt.md`` says what each call means, and where it differs from the library that it stands for. Nothing here
imports those libraries.
"""

from . import equinox as equinox
from . import flax as flax
from . import jax_nn as jax_nn

__all__ = ["equinox", "flax", "jax_nn"]
