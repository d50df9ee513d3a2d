"""Attention with a proof: one written meaning in NumPy, the same in JAX, every gradient cross-checked."""

from . import encoders as encoders
from . import masks as masks
from . import ops as ops
from . import params as params
from . import scores as scores
from . import spec as spec
