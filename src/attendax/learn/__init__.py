"""Attention, learned by writing it: exercises from softmax to an encoder block, and a grade that says what is wrong."""

from .grading import Grade as Grade
from .grading import grade as grade

__all__ = ["Grade", "grade"]


def __dir__() -> list[str]:
    return __all__
