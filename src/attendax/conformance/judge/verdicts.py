"""A finding of a judge: a verdict, and the numbers behind it."""

import enum
from typing import NamedTuple

# How a message of each begins.
CHANGES = "a result changes when the function is called again"
AGAIN = "a second backward through the same graph gives other gradients"
WROTE = "the call wrote to"
AN_ARRAY = "an array that may not be changed"  # and the error does not say which
ZEROS = "the result is all zeros"
WITHOUT = "wrong without dropout, too"
# Why a case is not judged.
NO_TIME, LEFT_OUT = "no time left", "left out for want of time"


class Verdict(enum.StrEnum):
    """The end of a case."""

    OK = "ok"
    CONVENTION = "differs by convention"  # and the adapter says so
    NOT_OFFERED = "not offered"
    WRONG = "wrong"
    LEAK = "leak"  # what may not matter does
    NAN = "NaN"
    SILENT = "silent"  # ignored an argument, a gradient of zeros
    OBSCURE = "obscure error"  # of a legal call
    CRASH = "crash"  # its process ended, or gave no answer that can be read
    TIMEOUT = "timeout"
    NOT_JUDGED = "not judged"  # no time was left: no fault, and no pass

    @property
    def fails(self) -> bool:
        """Tell whether this is a fault."""
        return self not in (Verdict.OK, Verdict.CONVENTION, Verdict.NOT_OFFERED, Verdict.NOT_JUDGED)


RIGHT = Verdict.OK, Verdict.CONVENTION


class Finding(NamedTuple):
    """A verdict and what it stands on."""

    verdict: Verdict
    message: str = ""
    leaf: str | None = None  # where the largest error is
    index: tuple[int, ...] | None = None  # type: ignore[assignment]
    expected: float | None = None
    got: float | None = None
    error: float | None = None  # the largest, relative to the largest number expected
    allowed: float | None = None
    off: float | None = None  # the largest that is allowed, of a number itself
    dense_error: float | None = None  # of the plain dense formula in the same dtype
    lack: str = ""  # the trait that is not offered, where one is known
    refused: bool = False  # whether it is not offered because a call raised, and not by its signature or declaration

    @property
    def said(self) -> str:
        """The verdict and the message."""
        return f"{self.verdict}: {self.message}"
