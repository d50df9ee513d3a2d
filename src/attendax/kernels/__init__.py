"""How `attendax.attention` is made fast: one contract, several backends, every direction of differentiation once."""

from attendax import ops as ops  # the layers and ``attention.py`` import each other, and this order works
