"""The kit in Python: judge every case of an implementation, one case, or the refusal of a mistake."""

import functools
import unittest
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attendax.successors import SUCCESSORS

from .adapters.implementation import Implementation
from .cases import CASES as CASES
from .cases import CLAIMS as CLAIMS
from .cases import Case
from .cases.how import How, drawn
from .contract.describing import NoFormula
from .contract.understanding import Settled, Understood, understood
from .judge.asking import alone, as_found, chosen
from .judge.verdicts import Finding, Verdict
from .report import Report
from .report.outcome import KnownFailures
from .run.budget import Budget
from .run.run import Run, Telling
from .run.run import judge as judge
from .worker.calling import subject_of
from .worker.place import implement

NOTHING = Settled()
CALLED_THERE = {"names": "rename"}  # settings by the names of their options


def check(
    fn: Any, *, name: str | None = None, only: Iterable[str] | None = (), level: str = "everything",
    profile: str = "numbers", dtype: str = "float32", seed: int | None = None, sizes: Mapping[str, int] | None = None,
    precision: str = "highest", budget: float | None = None, thorough: bool = False, known_failures: str | None = None,
    require: Iterable[str] = (), claims: Iterable[str] = (), progress: Callable[[int, int, Case], None] | None = None,
    timeout: float | None = None, total_timeout: float | None = None, repeat: int | None = None,
    in_process: bool = False, contract: str | None = None, expect: Mapping[str, str] | None = None,
    ignore: Iterable[str] = (), device: str | None = None, **left: Any,
) -> Report:  # fmt: skip
    """Judge an attention function, law by law, gradients included.

    A function is described first, as by ``describe``: it is called in its own way, and judged by its own conventions.

    Args:
        fn: the function, as the docstring of ``attendax.conformance`` has it; or its path "module:function"; or that of
            a program, "exec:./prog {case}"; or an ``Implementation``, or its path. A function may carry its gradients:
            ``fn.backward(grad_output, query, key, value, *, ..., grad_lse=None)`` gives those of query, key, value,
            bias and sinks, as far as they are given.
        only: laws ("L6"), parts of the names of cases, and keywords that are in no name ("offset"); all unless given.
        level: "forward", "gradient" (and forward) or "everything"; "backward" is the gradients alone.
        profile: "numbers": are values and gradients right where the function offers something; "robust" adds NaN under
            masks, extremes and empty sets; "law" is every case, and precision as L8 has it.
        budget: seconds of the run: CPU seconds of both processes, and those in which the function rests, as one that
            sleeps. Seconds of other programs do not count. The default is 30, and 60 for JAX; twice as many if the
            profile is not "numbers"; rests may double it. With 0 there is no limit, and no realistic size is tested.
        claims: "row-invariance", asked beside all else: the bits of a row do not change with the batch, its
            neighbours, more tokens behind it, or the other queries of the call.
        progress: is told index, number and case before each.
        contract: a file that says what it means, as ``attendax describe --save`` writes it: each difference is a fault.
            If calls do not tell how the function is called, it is called as the file says.
        expect: unusual meanings that are meant, {"scale": "1"}; of what is not described, all its conventions.
        ignore: parameters of which no meaning is known.
        in_process: call the function in this process, for a debugger. Else it is called in another, which knows
            neither what is right nor the seed; but a function that no other process can import is called in this one.
        name, dtype, seed, sizes, precision, thorough, known_failures, require: as ``attendax check --help`` has them;
            ``sizes`` is a mapping, ``name`` the report's.
        timeout, total_timeout, repeat, device: as that help has them.
        **left: settings of an earlier version; the error says what replaces them.

    Returns:
        ``Report``.

    Raises:
        TypeError, ValueError: a setting is none, no case is left, or the function fails with every kind of array.
        ModuleNotFoundError: a framework is not installed.

    Example:
        >>> from attendax import spec
        >>> check(spec.attention, ignore=["score_mod"], only=["scale given"], level="forward").ok
        True
    """
    how = How(
        drawn(seed), dtype, profile, dict(sizes or {}), precision, tuple(require), timeout, total_timeout, repeat,
        budget, tuple(claims), thorough,
    ).checked()  # fmt: skip
    refuse_left("check", left)
    settled = Settled.by(expect or {}, tuple(ignore), contract or "")
    make = functools.partial(implement, fn, name=name, device=device, in_process=in_process)
    describe = functools.partial(understood, fn, settled, in_process=in_process)
    more: dict[str, Any] = {"keep": isinstance(fn, Implementation), "settled": settled, "describe": describe}
    return judged(make, how, only, level, known_failures, Telling(progress), **more)


def refuse_left(name: str, settings: Iterable[str]) -> None:
    """Raise an error for settings that left, or that there never were."""
    for setting in settings:
        successor = SUCCESSORS.get(f"check --{CALLED_THERE.get(setting, setting).replace('_', '-')}")
        said = f"{setting} left: {successor}" if successor else f"{setting!r} is not a setting"
        raise TypeError(f"{name}: {said}")


def judged(
    make: Callable[..., Implementation], how: How, only: Iterable[str] | None, level: str, known_failures: str | None,
    tell: Telling, *, begun: float | None = None, name: str = "", keep: bool = False,
    describe: Callable[[], Understood | None] = lambda: None, settled: Settled = NOTHING,
) -> Report:  # fmt: skip
    """The report on what ``make(how=...)`` gives, whose process ends then unless that is to be kept.

    It is described first by ``describe``, and called as its contract says.
    """
    budget = Budget(how, begun)
    chosen(only, level, how)  # what cannot be asked is refused before the function is imported
    known = KnownFailures.read(known_failures)
    tell.begins(f"importing {name}", budget.left)
    try:
        found = describe()
    except NoFormula as error:
        asked = how.dtype, how.seed, level
        return Report(name or error.path, "", "", (), *asked, profile=how.profile, unsettled=(str(error),))
    try:
        if found:
            settled.refuse_unknown(found.names)
        made = make(how=how._replace(left=budget.left), **settled.settings(found))
    except BaseException:
        if found:
            found.subject.close()
        raise
    try:
        report = Run(made, how, budget, known, tell).report(only, level)
        return found.told(report, settled) if found else report
    finally:
        if not keep:
            subject_of(made).close()


def assert_conforms(
    fn: Any, case: Case, *, seed: int | None = None, dtype: str = "float32", profile: str = "law",
    claims: Iterable[str] = (), in_process: bool = False, contract: str | None = None,
    expect: Mapping[str, str] | None = None, ignore: Iterable[str] = (), **settings: Any,
) -> Finding:  # fmt: skip
    """Judge one case, for a test that is parametrised over ``CASES``.

    The function is described first, as by ``check``.

    Args:
        fn: as of ``check``.
        case: one of ``CASES``, or of ``CLAIMS["row-invariance"]`` where it is claimed.
        seed: of the numbers; drawn unless given, and told where something is wrong.
        dtype: of the cases that do not choose their own.
        profile: how much rounding is allowed, and whether every trait is asked, as of ``check``.
        claims: as of ``check``.
        in_process: as of ``check``.
        **settings: ``name``, ``contract``, ``expect`` and ``device``, as of ``check``.

    Returns:
        The finding: ok, or differs by a convention that is declared.

    Raises:
        AssertionError: a fault; its message is the law, the case, what was found, and the reproduction. Or no formula
            gives the results, or it is not settled what they mean: ``expect``, ``ignore`` or ``contract`` settles it.
        unittest.SkipTest: the function does not offer what the case asks; pytest counts it as skipped, with the reason.
        TypeError, ValueError, ModuleNotFoundError: as ``check``.

    Example:
        >>> import pytest
        >>> from attendax import spec
        >>> @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
        ... def test_attention(case):
        ...     assert_conforms(spec.attention, case)
    """
    how = How(drawn(seed), dtype, profile, claims=tuple(claims)).checked("assert_conforms")
    refuse_left("assert_conforms", settings.keys() - {"name", "device"})
    settled = Settled.by(expect or {}, tuple(ignore), contract or "")
    try:
        made, found = _implement_once(fn, how, settings | {"in_process": in_process}, settled)
    except NoFormula as error:
        raise AssertionError(str(error)) from error
    if found:
        settled.refuse_unknown(found.names)
    outcomes = [judge(made, one, how) for one in alone(made, [case], how)]
    outcome = next((outcome for outcome in outcomes if outcome.verdict.fails), outcomes[0])
    case, finding = outcome.case, outcome.finding
    if finding.verdict is Verdict.NOT_OFFERED:
        raise unittest.SkipTest(f"not offered: {finding.message}")
    if finding.verdict.fails:
        head = f"{case.law}, {case.name}: {case.about} (seed {how.seed})"
        raise AssertionError(f"{head}\n{outcome.told()}\n\n{outcome.reproduction}")
    if found and (unsettled := found.open_in(case, settled)):
        raise AssertionError(f"{case.law}, {case.name}: {unsettled}")
    return finding


Kept = tuple[Implementation, Understood | None]
_last: list[tuple[Any, dict[str, Any], Kept]] = []


def _implement_once(fn: Any, how: How, settings: dict[str, Any], settled: Settled) -> Kept:
    """The function as it is described and called, kept for its next case: finding that out needs some calls."""
    if not (_last and _last[0][0] is fn and _last[0][1] == settings):
        for _, _, (done, _) in _last:
            subject_of(done).close()
        _last.clear()
        found = understood(fn, settled, in_process=settings["in_process"])
        made = implement(fn, **settings, **settled.settings(found))
        _last[:] = [(fn, settings, (as_found(made, CASES, how), found))]
    return _last[0][2]


def assert_refuses(call: Callable[[], Any], error: type[Exception], *facts: str) -> str:
    """Assert that a call is refused: by exactly this error, whose first line states these facts.

    Args:
        call: of no arguments. A function under ``jax.jit`` is tried by a call of its own.
        error: the type; a subclass of it is another error.
        *facts: what the first line of the message has to hold, such as the name of the function, or two sizes that
            disagree.

    Returns:
        The whole message, for what else has to be in it.

    Raises:
        AssertionError: the call was accepted; or the error is of another type; or a fact is missing.

    Example:
        >>> import numpy as np
        >>> from attendax import spec
        >>> x = np.zeros((2, 3))
        >>> message = assert_refuses(lambda: spec.attention(x, x, x[1:]), ValueError, "attention: ", "S=2", "S=1")
        >>> print(message.splitlines()[0])
        attention: key has S=2 but value has S=1.
        >>> assert_refuses(lambda: x.reshape(4), TypeError)
        Traceback (most recent call last):
        AssertionError: refused by ValueError, not by TypeError: cannot reshape array of size 6 into shape (4,)
    """
    try:
        found = call()
    except Exception as caught:
        raised = caught
    else:
        shown = getattr(found, "shape", None)
        what = type(found).__name__ if shown is None else f"{type(found).__name__} of shape {shown}"
        raise AssertionError(f"accepted, where {error.__name__} was expected; gives {what}")
    message = str(raised)
    if type(raised) is not error:
        raise AssertionError(f"refused by {type(raised).__name__}, not by {error.__name__}: {message}") from raised
    first = message.splitlines()[0] if message else ""
    if missing := [fact for fact in facts if fact not in first]:
        raise AssertionError(f"{', '.join(map(repr, missing))} missing in the first line: {first!r}") from raised
    return message
