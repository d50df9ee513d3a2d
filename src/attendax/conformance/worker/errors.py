"""Ends of a call that gives no numbers: errors that go from process to process, and the text of an error."""

import dis
import re
from typing import Any

from ..cases.case import Leaves

MAX_CHARS = 10**5  # characters of what is said of an error
SAYS_WHY = re.compile(
    r"expect|support|require|should|at least|multiple of|divisible|\b(must|only|needs?|no|not|cannot|can't|too)\b", re.I
)
SIZE_WORDS = re.compile(r"\d|shape|size|length|dim|broadcast|align|match|square|equal|same", re.I)
OF_PYTHON = re.compile(r"unsupported operand|not supported between")  # its own words for a mistake inside
OF_TORCH = re.compile("dtype|support|should not be set")  # as its compiled functions say it
OF_A_FRAMEWORK = re.compile(r"[/\\](jax|numpy|jaxlib)[/\\](?!_src[/\\]nn)")


class NoNumbers(Exception):
    """The implementation gives something else than arrays of real numbers; the leaf, and what."""

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else ""


class Failed(Exception):
    """The implementation raised: all that is asked about the error, which stays where it was raised."""

    def __init__(self, said: str, refusal: bool = False) -> None:
        """Its kind and first line, and ``is_refusal``."""
        super().__init__(said, refusal)
        self.said, self.refusal = said, refusal

    def __str__(self) -> str:
        return self.said

    @classmethod
    def by(cls, error: BaseException) -> "Failed":
        """Describe an error."""
        return cls(first_line(error), is_refusal(error))


class Died(Failed):
    """It gave no answer that can be read, as its process ended: a "crash"; none in time: a "timeout"; "not judged"."""

    def __init__(self, said: str, how: str = "crash") -> None:
        super().__init__(said)
        self.args, self.how = (said, how), how


class Unusable(ValueError):
    """The function can be asked nothing: importing it, or the plainest call, died, hung or raised."""


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    lines = text_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}".rstrip(": ")


def text_of(error: BaseException) -> str:
    """The text of an error; empty where it cannot say it."""
    try:
        return str(error)
    except Exception:  # an error that cannot even say what it is
        return ""


def is_refusal(error: BaseException) -> bool:
    """Tell whether somebody wrote this error for this call: an assertion, or words that say what is expected.

    Words of JAX, NumPy or torch from within, such as of shapes that do not fit, are none: a statement ``raise`` outside
    of them made it, except in torch's compiled functions, which have none.
    """
    if not isinstance(error, AssertionError):  # whose condition says enough
        text = text_of(error)
        if not isinstance(error, (ValueError, TypeError, RuntimeError)) or not says_why(text):
            return False
        if isinstance(error, RuntimeError) and OF_TORCH.search(text):
            return True
    last, whole = error.__traceback__, error.__cause__
    if whole is not None and type(whole).__name__ == "UnfilteredStackTrace":  # JAX took its own frames out
        last = whole.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"] and not OF_A_FRAMEWORK.search(code.co_filename)


def says_why(text: str) -> bool:
    """Tell whether the text of an error says what is expected."""
    return bool(SAYS_WHY.search(OF_PYTHON.sub("", text)))


def answered(found: Leaves | tuple[str, list[Any]]) -> Leaves:
    """The leaves; an error is raised here as it was there."""
    if isinstance(found, dict):
        return found
    kind, said = found
    first, second = ([str(x) for x in said] + [""] * 2)[:2]
    own = {"not offered": NotImplementedError(first), "no numbers": NoNumbers(first, second), "died": Died(first)}
    raise own.get(kind) or Failed(first, kind == "refusal")
