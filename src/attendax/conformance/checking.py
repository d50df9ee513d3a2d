"""The kit in Python: judge every case of an implementation, one case, or the refusal of a mistake."""

import functools
import unittest
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attendax.successors import SUCCESSORS

from .adapters.implementation import Implementation
from .cases import CASES, Case
from .cases.how import How, drawn
from .contract.refusing import NoFormula
from .contract.understanding import Settled, Understood, understood
from .judge.asking import alone, as_found, chosen
from .judge.verdicts import Finding, Verdict
from .report import Report
from .report.known_failures import KnownFailures
from .run.budget import Budget
from .run.run import Run, Telling, confirmed
from .run.run import judge as judge
from .worker.calling import subject_of
from .worker.place import implement

NOTHING = Settled()
Described = tuple[Implementation, Understood | None]
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
    """Test an attention function against the laws, gradients included.

    ``describe`` first finds how the function is called and which conventions it follows. It is judged by these.

    Args:
        fn: the function, with the signature in the docstring of ``attendax.conformance`` or another; its path
            "module:function"; the path of a program, "exec:./prog {case}"; an ``Implementation``, or its path. A
            function may have its gradients as an attribute: ``fn.backward(grad_output, query, key, value, *, ...,
            grad_lse=None)`` returns those of query, key, value, and of bias and sinks if they are passed.
        only: laws ("L6"), parts of case names, and keywords that are in no name ("offset") [all].
        level: "forward", "gradient" (and forward), "everything", or "backward" (gradients alone).
        profile: "numbers" judges values and gradients of what the function offers; "robust" adds NaN under masks,
            extreme numbers and empty rows; "law" runs every case, with the precision of L8.
        budget: CPU seconds of both processes, and seconds in which the function sleeps. CPU time of other programs
            does not count. The default is 30, for JAX 60, and twice that in other profiles than "numbers"; the
            function may sleep as long again. 0 removes the limit, and leaves out realistic sizes.
        claims: "row-invariance" also tests that the bits of a row do not change with the batch, its neighbours, more
            tokens behind it, or the other queries of the call.
        progress: a function that is called with index, number and case before each case.
        contract: file of ``attendax describe --save``. Each difference from it is a fault. If calls cannot tell how
            the function is called, the file does.
        expect: unusual conventions that you mean, such as {"scale": "1"}; for an ``Implementation`` or a program, all
            of its conventions.
        ignore: parameters of unknown meaning, which are accepted.
        in_process: call the function in this process, for a debugger. Otherwise another process calls it, which knows
            neither the right result nor the seed. A function that another process cannot import is called in this one.
        name: name in the report.
        sizes: sizes of axes, as a mapping.
        dtype, seed, precision, thorough, known_failures, require: as in ``attendax check --help``.
        timeout, total_timeout, repeat, device: as in ``attendax check --help``.
        **left: settings of an earlier version; the error names what replaces them.

    Returns:
        ``Report``.

    Raises:
        TypeError, ValueError: a setting is not valid, no case is left, or the function fails with every kind of array.
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
    by = functools.partial(by_description, make, fn, settled, in_process=in_process)
    keep = isinstance(fn, Implementation)
    return judged(by, how, only, level, known_failures, Telling(progress), keep=keep, settled=settled)


def refuse_left(name: str, settings: Iterable[str]) -> None:
    """Raise an error for settings that left, or that there never were."""
    for setting in settings:
        successor = SUCCESSORS.get(f"check --{CALLED_THERE.get(setting, setting).replace('_', '-')}")
        said = f"{setting} left: {successor}" if successor else f"{setting!r} is not a setting"
        raise TypeError(f"{name}: {said}")


def by_description(
    make: Callable[..., Implementation], fn: Any, settled: Settled, *, in_process: bool = False, **more: Any
) -> Described:
    """The function that ``make`` makes, by its description if it has one, and that."""
    found = understood(fn, settled, in_process=in_process)
    try:
        if found:
            settled.refuse_unknown(found.names)
        return make(**more, **settled.settings(found)), found
    except BaseException:
        if found:
            found.subject.close()
        raise


def judged(
    make: Callable[..., Described], how: How, only: Iterable[str] | None, level: str, known_failures: str | None,
    tell: Telling, *, begun: float | None = None, name: str = "", keep: bool = False, settled: Settled = NOTHING,
) -> Report:  # fmt: skip
    """The report on what ``make(how=...)`` gives, whose process ends then unless that is to be kept."""
    budget = Budget(how, begun)
    chosen(only, level, how)  # what cannot be asked is refused before the function is imported
    known = KnownFailures.read(known_failures)
    tell.begins(f"importing {name}", budget.left)
    try:
        made, found = make(how=how._replace(left=budget.left))
    except NoFormula as error:
        asked = how.dtype, how.seed, level
        return Report(name or error.path, "", "", (), *asked, profile=how.profile, unsettled=(str(error),))
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
    """Test one case, in a test that is parametrised over ``CASES``.

    Args:
        fn: as in ``check``.
        case: one of ``CASES``; with the claim also one of ``CLAIMS["row-invariance"]``.
        seed: seed of the inputs [a new one, shown with each fault].
        dtype: dtype of the cases that do not choose their own.
        profile: allowed error, and which traits are required, as in ``check``.
        claims: as in ``check``.
        in_process: as in ``check``.
        **settings: ``name``, ``contract``, ``expect`` and ``device``, as in ``check``.

    Returns:
        The finding: ok, or a difference by a declared convention.

    Raises:
        AssertionError: a fault, with the law, the case, the numbers and a script. Or no known formula gives the
            results, or an unusual convention is not confirmed by ``expect``, ``ignore`` or ``contract``.
        unittest.SkipTest: the function does not offer what the case needs. pytest reports it as skipped.
        TypeError, ValueError, ModuleNotFoundError: as in ``check``.

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
    outcomes = [confirmed(made, judge(made, one, how), how)[1] for one in alone(made, [case], how)]
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


_last: list[tuple[Any, tuple[dict[str, Any], Settled], Described]] = []


def _implement_once(fn: Any, how: How, settings: dict[str, Any], settled: Settled) -> Described:
    """The function as it is described and called, kept for its next case: finding that out needs some calls."""
    given = settings, settled
    if not (_last and _last[0][0] is fn and _last[0][1] == given):
        for _, _, (done, _) in _last:
            subject_of(done).close()
        _last.clear()
        make = functools.partial(implement, fn, **settings)
        made, found = by_description(make, fn, settled, in_process=settings["in_process"])
        _last[:] = [(fn, given, (as_found(made, CASES, how), found))]
    return _last[0][2]


def assert_refuses(call: Callable[[], Any], error: type[Exception], *facts: str) -> str:
    """Assert that a call raises exactly this error, and that the first line of its message has these facts.

    Args:
        call: a function without arguments, such as a lambda. Test a call under ``jax.jit`` on its own.
        error: type of the error; a subclass counts as another error.
        *facts: texts that the first line must contain, such as the name of the function, or two sizes that disagree.

    Returns:
        The whole message.

    Raises:
        AssertionError: the call returns, the error has another type, or a fact is missing.

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
