"""A script that shows a failure in a fresh Python without attendax: the lines that the kit itself ran."""

import math

from ..adapters.implementation import Implementation
from ..cases.case import FORWARD, Case
from ..cases.how import How
from ..frameworks import framework, needs
from ..frameworks.text import printed, text_of
from ..judge.verdicts import CHANGES, WROTE, Finding, Verdict

OF_TWO = ("same_bits", "same_rows", "close")  # hold results against each other
NUMBERS_FIRST = ("dropped", "dropped_none")
CLOSING_OVER = """
kinds = {}
known = {{k: x for k, x in globals().items() if k in kinds}}
attend = closing_over(attend, kinds, known)
arrays = {{k: x for k, x in arrays.items() if k not in kinds}}
options = {{k: x for k, x in options.items() if k not in kinds}}"""
SCRIPTS = {  # what follows the numbers, by the judge
    "unwritten": """\
given = arrays | {k: x for k, x in options.items() if hasattr(x, 'shape')}
before = {name: x.copy() for name, x in given.items()}
CALL
assert all((before[name] == given[name]).all() for name in before)""",
    "dropped": """\
got = CALL
# with one-hot values the result is the weights after dropout
for leaf, x in got.items():
    print(leaf, 'zeros:', (x == 0).mean(), 'batch 0, head 0, query 0:', x[0, 0, 0][:8])
raise AssertionError(MESSAGE)""",
    "dropped_none": """\
one = CALL
options = {}
other = CALL
assert (one['out'] == other['out']).all()""",
}


def reproduction(implementation: Implementation, case: Case, finding: Finding, how: How) -> str:
    """The script; it ends in an error as long as the fault is there."""
    driver = text_of(implementation.arrays)
    case = case._replace(judge="unwritten") if finding.message.startswith(WROTE) else case
    text = case.text(how.seed, how.dtype)
    about = f"{case.law}, {case.name}: {case.about}"
    name = " ".join(filter(None, (implementation.name, implementation.version)))
    found = f"{name}, seed {how.seed}: {finding.verdict}. {finding.message}"
    second = case._replace(direction=case.then or case.direction)
    functions = [_function(one, implementation) for one in (case, second)] + ["closing_over"] * bool(case.constants)
    parts = [f"# {about}\n# {found}".rstrip(), driver.header]
    parts += [driver.wide] * bool((case.dtype or how.dtype) == "float64" and driver.wide)
    parts += [framework(implementation.arrays).on(implementation.device)] if implementation.device else []
    text_of_call = printed(implementation.arrays, tuple(dict.fromkeys(functions)))
    parts += ["# the function", implementation.source, "# the call", text_of_call, "# the numbers", text]
    collected = case.collected + (CLOSING_OVER.format(case.constants) if case.constants else "")
    call, then = _call(case, implementation), _call(second, implementation) if case.then else ""
    lines = _lines(call, then, collected, case, finding)
    return "\n\n".join([*parts, "\n".join([collected, *lines])]) + "\n"


def _function(case: Case, implementation: Implementation) -> str:
    if case.judge == "unwritten" and case.direction == FORWARD:
        return "unwritten"
    return implementation.way(case.direction)


def _call(case: Case, implementation: Implementation) -> str:
    """The call of the driver, as text, on ``arrays`` and ``options``."""
    given, how = ["attend", "arrays", "options"], case.direction.partition(", ")[2]
    if _function(case, implementation) != "unwritten":
        lse = ", lse=lse_cotangent" if "return_lse" in case.call else ""
        texts = {"cotangents": f"dict(out=cotangent{lse})"}
        given += [f"{name}={texts.get(name, name)}" for name in needs(case.direction)]
        given += [f"how={how!r}"] * bool(how)
    return f"{_function(case, implementation)}({', '.join(given)})"


def _lines(call: str, then: str, collected: str, case: Case, finding: Finding) -> list[str]:
    """The call, or two, and what fails as long as the fault is there."""
    judge, verdict, said = case.judge, finding.verdict, finding.message
    if judge in OF_TWO and verdict is Verdict.WRONG and finding.index is None:
        judge = "value"
    if judge in NUMBERS_FIRST and verdict is Verdict.WRONG and "shape" in said:
        judge = "value"
    if "SystemExit" in said:
        return [f"try:\n    {call}", "except SystemExit as error:\n    raise AssertionError(repr(error))"]
    if verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        return [f"{call}  # {verdict}: {said}"]
    if judge in SCRIPTS:
        return [SCRIPTS[judge].replace("CALL", call).replace("MESSAGE", repr(said))]
    if judge in OF_TWO:
        return _two_calls(call, then if judge == "same_rows" else "", collected, case, finding)
    if judge == "after_others":
        first = ["kept = arrays, options", case.changed, collected, f"{call}  # nothing of it may be kept"]
        return [*first, "arrays, options = kept", f"got = {call}", *_assertion(finding)]
    if judge == "held" and finding.leaf is not None and CHANGES in said:
        leaves = (finding.leaf, f"held {finding.leaf.removeprefix('grad ')}")
        before, now = (f"float(found[{leaf!r}][{finding.index}])" for leaf in leaves)
        return [f"found = {call}", f"print('then', {before}, 'now', {now})", f"assert {before} == {now}"]
    if verdict is Verdict.OBSCURE and judge != "held":
        return [f"{call}  # raises: {said}"]
    return [f"got = {call}", *_assertion(finding)]


def _assertion(finding: Finding) -> list[str]:
    leaf, index, allowed = finding.leaf, finding.index, finding.allowed
    if leaf is None:
        return ["print(got)"]
    lines = [f"got = got[{leaf!r}]"]
    if index is None:
        return [*lines, 'print("got", getattr(got, "shape", got))', f"raise AssertionError({finding.message!r})"]
    where, wanted = f"float(got[{index}])", finding.expected
    shown = repr(wanted) if wanted is None or math.isfinite(wanted) else f"float('{wanted}')"
    lines += [f"expected = {shown}  # by the definition, in float64", f"print('got', {where}, 'expected', expected)"]
    if finding.verdict is Verdict.NAN:  # in this run: what is never written may be any number in another
        lines.append("assert not np.isnan(got).any(), 'NaN'")
    if finding.off is None or "inf" in shown:
        return [*lines, f"assert {where} == expected"]
    of = "" if allowed is None else f"  # {allowed:.2g} of the largest number expected"
    return [*lines, f"assert abs({where} - expected) <= {finding.off:.3g}{of}"]


def _two_calls(call: str, then: str, collected: str, case: Case, finding: Finding) -> list[str]:
    """``then``: the second call, where it is another; vmap puts an axis before those of the first."""
    if finding.verdict is Verdict.NAN:
        return [f"one = {call}", "got = one", f"assert not np.isnan(got[{finding.leaf!r}]).all(), 'NaN'"]
    lines = [
        f"one = {call}",
        f"# {case.about if case.claim else 'changed where nothing may depend on it' if case.changed else 'again'}",
        *case.changed.splitlines(),
        collected,
        f"other = {{k: x.reshape(one[k].shape) for k, x in {then}.items()}}" if then else f"other = {call}",
    ]
    if finding.leaf is None:
        return lines
    one, other = (f"{x}[{finding.leaf!r}][{finding.index}]" for x in ("one", "other"))
    same = f"np.allclose({one}, {other}, atol={finding.allowed!r})" if case.judge == "close" else f"{one} == {other}"
    return [*lines, f"print('before', {one}, 'after', {other})", f"assert {same}"]
