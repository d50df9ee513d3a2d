"""One case of one implementation: whether it is offered, and what its judge finds."""

import functools
import math
import re
from collections.abc import Callable

import numpy as np

from ..adapters.implementation import Implementation
from ..cases import BY_NAME, Case
from ..cases.case import FORWARD, GRADIENT, SIZES, Leaves
from ..cases.how import How
from ..cases.kinds import DTYPES, GRADIENTS, RESULTS, directed
from ..cases.square import plain_of
from ..worker.calling import call
from ..worker.errors import Died, Failed, NoNumbers, first_line
from .judges import JUDGES
from .trial import Trial
from .verdicts import AN_ARRAY, WROTE, Finding, Verdict

# The plainest call that has a trait: the axes before its heads, and its sizes, from its own.
NEEDED: dict[str, tuple[str, Callable[[dict[str, int]], dict[str, int]]]] = {
    "grouped heads": ("B", lambda x: {"N": 2 * x["G"]} if x["N"] == x["G"] else {}),
    "V != D": ("B", lambda x: {"V": x["D"] + 2} if x["V"] == x["D"] else {}),
    "V != D with grouped heads": ("B", lambda x: {"N": 2 * x["G"], "V": x["D"] + 2}),
    "rank 2": ("-", lambda x: {"N": 1, "G": 1}),
    "rank 3": ("", dict),
    "rank 5": ("AB", lambda x: {"A": 2}),
}
TRACED = {FORWARD: "traced", GRADIENT: "traced gradient"}  # which is not compiled
IN_PLACE_ERROR = re.compile("is read-only|leaf Variable that requires grad is being used in an in-place operation")
# What no keyword shows, and who lacks it raises.
PROBED = ("grouped heads", "V != D", "V != D with grouped heads", *DTYPES, GRADIENTS)


def find(implementation: Implementation, case: Case, how: How) -> tuple[Finding, Leaves]:
    """The finding in a case, and what a call gave."""
    return _found(implementation, case, how, JUDGES[case.judge])


def offers(implementation: Implementation, case: Case, how: How) -> bool:
    """Tell whether an implementation takes what a case asks for, by calling it, or tracing it in JAX."""
    traced = TRACED.get(case.direction) if implementation.arrays == "jax" and not implementation.eager else None

    def calls(trial: Trial) -> Finding:
        trial.run(direction=traced)
        return Finding(Verdict.OK)

    return _found(implementation, case, how, calls)[0].verdict is not Verdict.NOT_OFFERED


def names(implementation: Implementation, case: Case, how: How) -> bool:
    """Tell whether an implementation has what a case asks for, as far as that is known without a call of the case."""
    return not isinstance(_asked(implementation, case, how), Finding)


def can_be_asked(implementation: Implementation, case: Case) -> bool:
    """Tell whether the framework has what a case asks: a NumPy function has the gradients that it brings.

    A candidate that is not a Python function is asked for results and gradients: it cannot see what happens to the
    arrays of the caller; its results lie in memory that is not its own.
    """
    of_memory = case.judge in ("unwritten", "held") or case.direction == "changed in place"
    if implementation.foreign and of_memory:
        return False
    of_numpy = {RESULTS} | ({GRADIENTS} if implementation.backward else set())
    return implementation.arrays in case.frameworks and (implementation.arrays != "numpy" or directed(case) in of_numpy)


def _asked(implementation: Implementation, case: Case, how: How) -> Finding | Trial:
    """The case as it is asked, or why it is not."""
    if not can_be_asked(implementation, case):
        of_foreign, of_own = "tested for Python functions only", f"not tested for {implementation.arrays} functions"
        reason = of_foreign if implementation.foreign else of_own
        return Finding(Verdict.NOT_OFFERED, reason, lack="eager" if case.direction == "eager" else directed(case))
    if case.claim and case.claim not in how.claims:
        return Finding(Verdict.NOT_OFFERED, f"{case.claim} is not claimed", lack=case.claim)
    trial = Trial(implementation, case, how)
    traits = [*trial.inputs.options, *implementation.form.lacking(case), *case.traits(trial.inputs)]
    if lack := implementation.lack(traits) or _found_lacking(implementation, case, trial):
        return Finding(Verdict.NOT_OFFERED, lack[1], lack=lack[0])
    return trial


def _found(
    implementation: Implementation, case: Case, how: How, judge: Callable[[Trial], Finding]
) -> tuple[Finding, Leaves]:
    trial = _asked(implementation, case, how)
    if isinstance(trial, Finding):
        return trial, {}
    try:
        finding = judge(trial)
        if trial.wrote and not finding.verdict.fails:
            finding = Finding(Verdict.WRONG, f"{WROTE} {trial.wrote[0]}", trial.wrote[0])
        return finding, trial.got
    except NotImplementedError as error:
        return Finding(Verdict.NOT_OFFERED, str(error) or first_line(error), refused=True), {}
    except NoNumbers as found:
        return Finding(Verdict.WRONG, found.args[1], found.args[0]), {}
    except Died as died:
        return Finding(Verdict(died.how), str(died)), {}
    except Failed as failed:
        if _is_refused(failed, trial):
            said = "refused:" if failed.refusal else "raises"
            return Finding(Verdict.NOT_OFFERED, f"{said} {failed}", refused=True), {}
        return _raised(failed, trial), {}


def _is_refused(failed: Failed, trial: Trial) -> bool:
    """Tell whether somebody refuses this call, or the rank of an array, which only the law asks for, may raise."""
    if failed.refusal:
        return True
    traits = [] if trial.how.strict else trial.case.traits(trial.inputs)
    ranks = [trait for trait in traits if trait.startswith("rank ")]
    return "bias of rank 1" in traits or "bias of rank 3" in traits or any(_probe(trial, trait) for trait in ranks)


def _raised(failed: Failed, trial: Trial) -> Finding:
    """The finding if a call raises: in a narrow dtype alone, as -1e9 does in float16, it is not offered there."""
    if IN_PLACE_ERROR.search(failed.said):
        return Finding(Verdict.WRONG, f"{WROTE} {AN_ARRAY}", AN_ARRAY)
    fault = Finding(Verdict.OBSCURE, str(failed))
    if trial.how.strict or trial.dtype not in NARROW_DTYPES or trial.dtype == trial.how.dtype:
        return fault
    wide = Trial(trial.implementation, trial.case._replace(dtype="float32"), trial.how)
    try:
        call(trial.implementation, wide.inputs, trial.case.direction)
    except Died as died:  # there may be no time for it
        return Finding(Verdict(died.how), str(died))
    except (NotImplementedError, Failed, NoNumbers):
        return fault
    said = ", ".join(sorted(trial.case.options)) or "a call"
    return Finding(Verdict.NOT_OFFERED, f"{said} in {trial.dtype}: raises {failed}", refused=True)


def _found_lacking(implementation: Implementation, case: Case, trial: Trial) -> tuple[str, str] | None:
    """A trait that is missing though not declared so, and why: the plainest call that needs it raises.

    The profile "law" asks for every trait. A candidate with a rule of its own for the gradient offers gradients: that
    rule may not raise.
    """
    if trial.how.strict or implementation.recorded:
        return None
    for trait in case.traits(trial.inputs):
        if trait in PROBED and trait != trial.how.dtype and (reason := _probe(trial, trait)):
            own = trait == GRADIENTS and rule_of(implementation, trial.how)
            return None if own else (trait, f"{trait}: {reason}")
    return None


@functools.lru_cache(maxsize=256)
def _error(implementation: Implementation, trait: str, dtype: str, sizes: tuple[tuple[str, int], ...]) -> str:
    """Words for what the plainest call that needs a trait does wrong; nothing where it runs."""
    form, how = implementation.form, How(dtype=dtype, sizes=dict(sizes))
    case = plain_of(form, how.sizes, case=BY_NAME["gradient: plain" if trait == GRADIENTS else "plain"])
    base = SIZES | case.sizes
    leading, sized = NEEDED.get(trait, (case.leading, dict))
    case = case._replace(sizes=base | sized(base), leading=leading, dtype=trait if trait in DTYPES else None)
    inputs = Trial(implementation, case, how).inputs
    shape = (*inputs.arrays["query"].shape[:-1], inputs.arrays["value"].shape[-1])
    try:
        out = call(implementation, inputs, case.direction).get("out", np.zeros(shape))
        if out.shape != shape and out.size == math.prod(shape):
            return f"gives the shape {out.shape}, expected {shape}"  # as values are reshaped to the width of keys
    except (NotImplementedError, Died):
        return ""  # what says so itself, or ends, tells by the call of each case
    except (Failed, NoNumbers) as failed:
        return f"raises {failed}"
    return ""


def _probe(trial: Trial, trait: str) -> str:
    return _error(trial.implementation, trait, trial.how.dtype, tuple(trial.how.sizes.items()))


NARROW_DTYPES = ("float16", "bfloat16")
OWN_RULES = {"jax": "a custom_vjp or custom_jvp", "torch": "its result requires grad", "numpy": "a backward is given"}


def rule_of(implementation: Implementation, how: How) -> str:
    """The reason why gradients are asked for: the function has a rule for them, or torch records one; else nothing."""
    return "" if implementation.foreign else _rule(implementation, how.dtype)  # that is found by asking for them


@functools.lru_cache(maxsize=256)
def _rule(implementation: Implementation, dtype: str) -> str:
    inputs = Trial(implementation, plain_of(implementation.form, {}), How(dtype=dtype)).inputs
    try:
        found = call(implementation, inputs, "custom rule")["rule"].any()
    except (NotImplementedError, Failed, NoNumbers):
        return ""
    return OWN_RULES[implementation.arrays] if found else ""
