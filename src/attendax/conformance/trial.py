"""One implementation on one case: its inputs, what it gives, what is right, and how far off it may be."""

import contextlib
import copy
import dis
import re
import warnings
from typing import Any

import ml_dtypes
import numpy as np

from . import dense, expected
from .cases.case import Case, Inputs, Leaves
from .frameworks import framework
from .how import How
from .implementation import Implementation
from .verdicts import Tolerance, judge_leaf, largest

DRAWS = (1, 16)  # of the dense formula: one error of so few numbers may be small by chance
MANY_DRAWS = 64
MANY_PAIRS = 2**20  # of queries and keys: fewer draws are enough
EXACT, NEARLY_EXACT = 1e-12, 1e-10  # float64: by L8, and where only numbers are asked
EASY = 4.0  # where only numbers are asked: times the error of the dense formula, every step of it in the dtype


MOST = 2  # effort


class Trial:
    """One implementation on one case."""

    def __init__(self, implementation: Implementation, case: Case, how: How | None = None) -> None:
        """Make the inputs."""
        self.implementation, self.case, self.how = implementation, case, how or How()
        self.dtype = case.dtype or self.how.dtype
        self.inputs = case.inputs(self.how.seed, self.dtype)
        self.got: Leaves = {}  # what a call gave, for a diagnosis
        self.kept = True  # whether the inputs are those of the case

    def run(self, inputs: Inputs | None = None, direction: str | None = None) -> Leaves:
        """What the implementation gives: leaves of NumPy arrays."""
        inputs, direction = inputs or self.inputs, direction or self.case.direction
        found = run(self.implementation, inputs, direction)
        if self.case.judge not in ("value", "refused", "unwritten") and direction in ("forward", "eager"):
            query, value = inputs.arrays["query"], inputs.arrays["value"]
            shapes = {"out": query.shape[:-1] + value.shape[-1:], "lse": query.shape[:-1]}
            for leaf in ("out", "lse") if "return_lse" in inputs.options else ("out",):
                if leaf not in found:
                    raise NoNumbers(leaf, f"gives no {leaf}")
                if found[leaf].shape != shapes[leaf]:
                    raise NoNumbers(leaf, f"{leaf} has shape {found[leaf].shape}, expected {shapes[leaf]}")
        return found

    def at(self, inputs: Inputs) -> "Trial":
        """The same with other inputs, and what was got."""
        other = copy.copy(self)
        other.inputs, other.kept = inputs, False
        return other

    def changed(self) -> Inputs:
        """The inputs after the lines that change them."""
        return self.case.inputs(self.how.seed, self.dtype, changed=True)

    def expected(self, inputs: Inputs | None = None, **conventions: Any) -> Leaves:
        """What is right, in float64; of the case itself kept, for it is the same for every implementation."""
        key = "" if inputs or conventions or not self.kept else _key(self.case, self.how.seed, self.dtype)
        if key in _expected:
            return _expected[key]
        with np.errstate(all="ignore"):
            found = expected.BY_DIRECTION[self.case.direction](inputs or self.inputs, **conventions)
        if key:
            _expected[key] = found
        return found

    def tolerances(self, wanted: Leaves, *, effort: int = MOST) -> dict[str, Tolerance]:
        """How far each leaf may be off.

        By the law twice the error of the dense formula in the same dtype (L8); where only numbers are asked, four times
        that of the formula with every step in the dtype.

        Args:
            wanted: the leaves.
            effort: -1 is without the formula; 0 of one draw of the numbers, 1 of more, 2 of many, under ``jax.jit`` as
                well as in NumPy. The largest error counts, so that more effort only allows more.
        """
        if self.case.tolerance is not None:
            easy = 1 if self.how.strict else EASY
            return dict.fromkeys(wanted, Tolerance(easy * self.case.tolerance))
        fine = self.dtype == "float64"  # there the error of the dense formula is told, and no bound
        errors = self._dense(DRAWS[0 if fine else min(effort, 1)]) if effort >= 0 else {}
        if effort == MOST and not fine:
            for in_jax in (False, True):
                more = self._dense(MANY_DRAWS, in_jax=in_jax)
                errors = {leaf: max(x, more.get(leaf, 0.0)) for leaf, x in errors.items()}
        return {leaf: self._tolerance(leaf, errors) for leaf in wanted}

    def _dense(self, draws: int, *, in_jax: bool = False) -> dict[str, float]:
        case = self.case
        rounding = "" if self.how.precision == "highest" or self.dtype != "float32" else self.how.precision
        steps = "float32" if self.how.strict else self.dtype
        return dense_errors(
            case, self.how.seed, self.dtype, draws=draws, in_jax=in_jax, style=dense.Style(rounding, steps)
        )

    def _tolerance(self, leaf: str, errors: dict[str, float]) -> Tolerance:
        dense_error, unit = errors.get(leaf), self.case.units.get(leaf, 0.0)
        if self.dtype == "float64":
            return Tolerance(EXACT if self.how.strict else NEARLY_EXACT, dense_error, unit)
        narrow = np.float32 if leaf.endswith("lse") and self.how.strict else self.inputs.arrays["query"].dtype
        rounding = max(_eps(narrow), 2 * _eps(np.float32))  # where the dense formula happens to be exact
        if self.how.strict:
            return Tolerance(self.case.slack * max(2 * (dense_error or 0.0), rounding), dense_error, unit)
        return Tolerance(EASY * max(dense_error or 0.0, 2 * rounding), dense_error, unit)


def _eps(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def run(implementation: Implementation, inputs: Inputs, direction: str) -> Leaves:
    """Call the driver of the framework for a direction."""
    module = framework(implementation.arrays)
    name, _, how = direction.partition(", ")
    function = getattr(module, name.replace(" ", "_"), None)
    if function is None or ("gradient" in name and implementation.arrays == "numpy" and not implementation.backward):
        raise NotImplementedError(f"no {name} of functions of {implementation.arrays} arrays")
    if name == "forward" and implementation.eager:
        function = module.eager
    given = directions(inputs, name) | ({"how": how} if how else {})
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
        except NotImplementedError:
            raise
        except (Exception, SystemExit) as error:
            if module.is_lack(error):
                raise NotImplementedError(first_line(error)) from error
            raise Failed(first_line(error)) from error
    return {leaf: numbers(leaf, x) for leaf, x in found.items()}


def numbers(leaf: str, x: Any) -> np.ndarray:
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


class NoNumbers(Exception):
    """The implementation gives something else than arrays of real numbers; the leaf, and what."""


class Failed(Exception):
    """The implementation raised; what, on one line."""


def first_line(error: BaseException | None) -> str:
    """The kind of an error and the first line of its text."""
    try:
        text = str(error).strip()
    except Exception:  # an error that cannot even say what it is
        text = ""
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}".rstrip(": ")


SAYS_WHY = re.compile(r"\bmust\b|should|expect|support|require|at least|multiple of|divisible|\bonly\b", re.IGNORECASE)
OF_A_FRAMEWORK = re.compile(r"[/\\](jax|numpy|jaxlib)[/\\](?!_src[/\\]nn)")


def is_refusal(error: BaseException | None) -> bool:
    """Whether somebody wrote this error for this call: an assertion, or words that say what is expected.

    What JAX, NumPy or torch say from within, such as of shapes that do not fit, is none.
    """
    if isinstance(error, AssertionError):
        return True
    if not isinstance(error, (ValueError, TypeError, RuntimeError)) or not SAYS_WHY.search(str(error)):
        return False
    if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
        return any(words in str(error) for words in ("dtype", "support", "should not be set"))
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


def directions(inputs: Inputs, name: str) -> dict[str, Any]:
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


def dense_errors(
    case: Case,
    seed: int,
    dtype: str,
    *,
    draws: int = DRAWS[-1],
    in_jax: bool = False,
    style: dense.Style = dense.Style(),  # noqa: B008  a value
) -> dict[str, float]:
    """The largest error of each leaf of the dense formula in a dtype, relative to its largest number, over some draws.

    It is the same for every implementation, and kept.
    """
    key = f"{_key(case, seed, dtype)} {draws} {in_jax} {style}"
    if key not in _dense_errors:
        _dense_errors[key] = _measure_dense(case, seed, dtype, draws, in_jax, style)
    return _dense_errors[key]


_dense_errors: dict[str, dict[str, float]] = {}
_expected: dict[str, Leaves] = {}


def _key(case: Case, seed: int, dtype: str) -> str:
    """All that the numbers of a case depend on."""
    return f"{case.text(seed, dtype)} {case.call} {case.direction}"


def _measure_dense(case: Case, seed: int, dtype: str, draws: int, in_jax: bool, style: dense.Style) -> dict[str, float]:
    formula = expected.in_context(dense.formula(case.direction, in_jax, style))
    worst: dict[str, float] = {}
    first = case.inputs(seed, dtype)
    options, pairs = first.options, first.arrays["query"][..., 0].size * first.arrays["key"].shape[-2]
    for draw in range(max(1, min(draws, MANY_PAIRS // max(pairs, 1)))):
        inputs = case.inputs(seed + 1000 * draw, dtype)._replace(options=options)
        with np.errstate(all="ignore"):
            wanted = expected.BY_DIRECTION[case.direction](inputs)
            got = expected.mapped(inputs, formula) if "mapped" in inputs.extra else formula(inputs)
        tree = max((largest(x) for x in wanted.values()), default=0.0)
        for leaf in wanted:
            tolerance = Tolerance(np.inf, unit=case.units.get(leaf, 0.0))
            found = judge_leaf(leaf, np.asarray(got[leaf]), wanted[leaf], tolerance, tree)
            if found.error is not None and not found.verdict.fails:  # where it fails itself, nothing is granted
                worst[leaf] = max(worst.get(leaf, 0.0), found.error)
    return worst
