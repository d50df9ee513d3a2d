"""Every case, from the plain to the special."""

from . import biases, conduct, gradients, leaks, masks, values
from .case import LEVELS, Case, Inputs, Leaves

CASES: tuple[Case, ...] = (
    *values.CASES,
    *masks.CASES,
    *biases.CASES,
    *gradients.CASES,
    *leaks.CASES,
    *conduct.CASES,
)
__all__ = ["CASES", "LEVELS", "Case", "Inputs", "Leaves"]
