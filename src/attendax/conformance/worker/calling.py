"""One call of the function that is judged: arrays in, arrays or an error in words out."""

import contextlib
import dis
import re
import warnings
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import Inputs, Leaves
from ..frameworks import framework

SAYS_WHY = re.compile(
    r"expect|support|require|should|at least|multiple of|divisible|\b(must|only|needs?|no|not|cannot|can't|too)\b", re.I
)
SAYS_NOTHING = (AttributeError, IndexError, KeyError, UnboundLocalError, RecursionError, SystemExit)
OF_A_FRAMEWORK = re.compile(r"[/\\](jax|numpy|jaxlib)[/\\](?!_src[/\\]nn)")


class NoNumbers(Exception):
    """The implementation gives something else than arrays of real numbers; the leaf, and what."""


class Failed(Exception):
    """The implementation raised: all that is asked about the error, which stays where it was raised.

    Attributes:
        said: its kind and the first line of its text.
        text: the whole text.
        refusal: whether somebody wrote it for this call, as ``is_refusal`` has it.
        names_nothing: whether it says no more than that something went wrong.
    """

    def __init__(self, said: str, text: str = "", refusal: bool = False, names_nothing: bool = False) -> None:
        super().__init__(said, text, refusal, names_nothing)
        self.said, self.text, self.refusal, self.names_nothing = said, text, refusal, names_nothing

    def __str__(self) -> str:
        return self.said

    @classmethod
    def by(cls, error: BaseException) -> "Failed":
        """What an error says."""
        said = first_line(error)
        nothing = isinstance(error, SAYS_NOTHING) or said == type(error).__name__
        return cls(said, _text(error), is_refusal(error), nothing)


def call(implementation: Implementation, inputs: Inputs, direction: str) -> Leaves:
    """What the implementation gives in a direction: NumPy arrays by name, through the driver of its framework.

    Raises:
        NotImplementedError: it, or its framework, has nothing of the kind, and says so in words.
        Failed: it raised.
        NoNumbers: it gives something else.
    """
    module = framework(implementation.arrays)
    name, _, how = direction.partition(", ")
    function = getattr(module, name.replace(" ", "_"), None)
    if function is None or ("gradient" in name and implementation.arrays == "numpy" and not implementation.backward):
        raise NotImplementedError(f"no {name} of functions of {implementation.arrays} arrays")
    if name == "forward" and implementation.eager:
        function = module.eager
    given = _directions(inputs, name) | ({"how": how} if how else {})
    attend, arrays, options = implementation.attend, inputs.arrays, inputs.options
    if kinds := inputs.extra.get("constants"):
        known = {k: x for k, x in (inputs.extra | options | arrays).items() if k in kinds}
        attend = module.closing_over(attend, kinds, known)
        arrays, options = ({k: x for k, x in some.items() if k not in kinds} for some in (arrays, options))
    context = module.wide() if inputs.arrays["query"].dtype == np.float64 else contextlib.nullcontext()
    with warnings.catch_warnings(), context, module.placed(implementation.device), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = function(attend, arrays, options, **given)
        except NotImplementedError as error:
            if not _text(error).strip():
                raise Failed.by(error) from error
            raise
        except (Exception, SystemExit) as error:
            if module.is_lack(error):
                raise NotImplementedError(first_line(error)) from error
            raise Failed.by(error) from error
    return {leaf: _numbers(leaf, x) for leaf, x in found.items()}


def _directions(inputs: Inputs, name: str) -> dict[str, Any]:
    """What a driver needs beyond the inputs."""
    extra, given = inputs.extra, {}
    if "gradient" in name or name == "second":
        given["cotangents"] = {"out": extra["cotangent"]}
        if "lse_cotangent" in extra:
            given["cotangents"]["lse"] = extra["lse_cotangent"]
    if name in ("jvp", "second"):
        given["tangents"] = extra["tangents"]
    if name in ("vmap", "per example gradient"):
        given["mapped"] = extra["mapped"]
    if name == "changed in place":
        given["changed"] = extra["changed"]
    return given


def _numbers(leaf: str, x: Any) -> np.ndarray:
    """A copy: the function may write its next result to the same memory.

    Raises:
        NoNumbers: it is None, text, complex, ...
    """
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind is None:
        raise NoNumbers(leaf, f"{leaf} is of type {type(x).__name__}, expected an array")
    if kind not in "fViub":
        raise NoNumbers(leaf, f"{leaf} is {x.dtype}, expected real numbers")
    return np.array(x)


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    lines = _text(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}".rstrip(": ")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error that cannot even say what it is
        return ""


def is_refusal(error: BaseException) -> bool:
    """Whether somebody wrote this error for this call: an assertion, or words that say what is expected.

    What JAX, NumPy or torch say from within, such as of shapes that do not fit, is none.
    """
    if not isinstance(error, AssertionError):  # whose condition says enough
        text = _text(error)
        if not isinstance(error, (ValueError, TypeError, RuntimeError)) or not SAYS_WHY.search(text):
            return False
        if isinstance(error, RuntimeError) and any(
            words in text for words in ("dtype", "support", "should not be set")
        ):
            return True  # as torch's compiled functions say it
    return _is_raised(error)


def _is_raised(error: BaseException) -> bool:
    """Whether a statement ``raise`` outside of JAX and NumPy made the error: their compiled functions have none."""
    last, whole = error.__traceback__, error.__cause__
    if whole is not None and type(whole).__name__ == "UnfilteredStackTrace":  # JAX took its own frames out
        last = whole.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"] and not OF_A_FRAMEWORK.search(code.co_filename)
