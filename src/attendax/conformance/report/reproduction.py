"""A script that shows a failure in a fresh Python without attendax: the lines that the kit itself ran."""

import functools
import re
from collections.abc import Callable

from ..adapters.implementation import Implementation
from ..cases.case import ARRAYS, FORWARD, Case
from ..cases.how import How
from ..frameworks import framework, needs
from ..frameworks.text import text_of
from ..judge.verdicts import CHANGES, WROTE, Finding, Verdict

OF_TWO = ("same_bits", "same_rows", "close", "merged")  # hold results against each other
NUMBERS_FIRST = ("dropped", "dropped_none")
COMPILED = "compiled = partial(jax.jit, static_argnums=(0, 1, 2))"

SCRIPTS = {  # what follows the numbers, by the judge
    "unwritten": """\
given = arrays | {k: x for k, x in options.items() if hasattr(x, 'shape')}
before = {name: x.copy() for name, x in given.items()}
CALL
assert all((before[name] == given[name]).all() for name in before)""",
    "merged": """\
whole, given = arrays, options
halves = []
for part in (slice(None, cut), slice(cut, None)):
    arrays = {k: x if k == 'query' else x[..., part, :] for k, x in whole.items()}
    options = {k: x[..., part] if k == 'mask' else x for k, x in given.items()}
    halves.append(CALL)
outs, lses = ([half[k].astype('float64') for half in halves] for k in ('out', 'lse'))
largest = np.maximum(np.maximum(*lses), np.finfo('float64').min)
powers = [np.exp(lse - largest)[..., None] for lse in lses]
total = powers[0] + powers[1]
out = (powers[0] * outs[0] + powers[1] * outs[1]) / np.where(total == 0, 1, total)
got = dict(out=out, lse=largest + np.log(total[..., 0]))""",
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
    functions = tuple(dict.fromkeys(_function(one, implementation) for one in (case, _second(case))))
    parts = [f"# {about}\n# {found}".rstrip(), driver.header]
    parts += [driver.wide] * bool((case.dtype or how.dtype) == "float64" and driver.wide)
    parts += [framework(implementation.arrays).on(implementation.device)] if implementation.device else []
    parts += [
        "# the function",
        implementation.source,
        "# the call",
        _drivers(implementation.arrays, functions, bool(case.constants)),
        "# the numbers",
        text,
    ]
    return "\n\n".join([*parts, _ending(implementation, case, finding)]) + "\n"


@functools.cache
def _drivers(arrays: str, functions: tuple[str, ...], constants: bool) -> str:
    """The functions of the driver that the direction uses, and what those use."""
    known, wanted = text_of(arrays).functions, [*functions, *["closing_over"] * constants]
    sources: dict[str, str] = {}
    while wanted:
        name = wanted.pop()
        sources[name] = known[name]
        body = sources[name].replace(f"def {name}(", "")
        wanted += [n for n in known if re.search(rf"\b{n}\b", body) and n not in sources and n not in wanted]
    order = [name for name in known if name in sources]
    if any(text.startswith("@compiled") for text in sources.values()):
        at = next(k for k, name in enumerate(order) if sources[name].startswith("@compiled"))
        sources[order[at]] = f"{COMPILED}\n\n\n{sources[order[at]]}"
    return "\n\n\n".join(sources[name] for name in order)


def _second(case: Case) -> Case:
    """The case of the second call."""
    return case._replace(direction=case.then or case.direction)


def _function(case: Case, implementation: Implementation) -> str:
    if case.judge == "unwritten" and case.direction == FORWARD:
        return "unwritten"
    name = case.direction.partition(", ")[0].replace(" ", "_")
    return "eager" if name == "forward" and implementation.eager else name


def _call(case: Case, implementation: Implementation) -> str:
    """The call of the driver, as text, on ``arrays`` and ``options``."""
    given, how = ["attend", "arrays", "options"], case.direction.partition(", ")[2]
    if case.judge != "refused" and _function(case, implementation) != "unwritten":
        lse = ", lse=lse_cotangent" if "return_lse" in case.call else ""
        texts = {"cotangents": f"dict(out=cotangent{lse})"}
        given += [f"{name}={texts.get(name, name)}" for name in needs(case.direction)]
        given += [f"how={how!r}"] * bool(how)
    return f"{_function(case, implementation)}({', '.join(given)})"


def _collected(case: Case) -> str:
    lines = ["arrays = dict(query=query, key=key, value=value)", f"options = dict({case.call})"]
    for name in ARRAYS[3:]:
        if f"{name}=" in case.call:
            lines.append(f'if options["{name}"].dtype.kind in "fV":\n    arrays["{name}"] = options.pop("{name}")')
    if case.constants:
        lines += [
            f"kinds = {case.constants!r}",
            "known = {k: x for k, x in globals().items() if k in kinds}",
            "attend = closing_over(attend, kinds, known)",
            "arrays = {k: x for k, x in arrays.items() if k not in kinds}",
            "options = {k: x for k, x in options.items() if k not in kinds}",
        ]
    return "\n".join(lines)


def _ending(implementation: Implementation, case: Case, finding: Finding) -> str:
    """Collect, call, and hold the result against what is right."""
    call, collected = _call(case, implementation), _collected(case)
    if case.judge in NUMBERS_FIRST and finding.verdict is Verdict.WRONG and "shape" in finding.message:
        case = case._replace(judge="value")
    if "SystemExit" in finding.message:
        lines = [collected, f"try:\n    {call}", "except SystemExit as error:\n    raise AssertionError(repr(error))"]
        return "\n".join(lines)
    special: dict[str, Callable[..., str]] = {
        "same_bits": _two_calls, "close": _two_calls, "refused": _refusal, "held": _held,
        "same_rows": functools.partial(_two_calls, then=_call(_second(case), implementation) if case.then else ""),
        **dict.fromkeys(SCRIPTS, _by_script),
    }  # fmt: skip
    if finding.verdict is Verdict.OBSCURE and case.judge not in special:
        return f"{collected}\n{call}  # raises: {finding.message}"
    if finding.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        return f"{collected}\n{call}  # {finding.verdict}: {finding.message}"
    of_a_whole_leaf = finding.verdict is Verdict.WRONG and finding.index is None
    if case.judge in special and not (of_a_whole_leaf and case.judge in OF_TWO):
        return special[case.judge](call, collected, case, finding)
    return "\n".join([collected, f"got = {call}", *_assertion(finding)])


def _assertion(finding: Finding) -> list[str]:
    leaf, index = finding.leaf, finding.index
    if leaf is None:
        return ["print(got)"]
    lines = [f"got = got[{leaf!r}]"]
    if index is None:
        return [*lines, 'print("got", getattr(got, "shape", got))', f"raise AssertionError({finding.message!r})"]
    if finding.verdict is Verdict.NAN:
        return [*lines, f"print(got[{index}])", "assert not np.isnan(got).any(), 'NaN'"]
    where = f"float(got[{index}])"
    lines += [
        f"expected = {finding.expected!r}  # by the definition, in float64",
        f"print('got', {where}, 'expected', expected)",
    ]
    if finding.allowed is None or finding.error is None:
        return [*lines, f"assert {where} == expected"]
    off = abs((finding.expected or 0) - (finding.got or 0)) * finding.allowed / (finding.error or 1)
    return [
        *lines,
        f"assert abs({where} - expected) <= {off:.3g}  # {finding.allowed:.2g} of the largest number expected",
    ]


def _two_calls(call: str, collected: str, case: Case, finding: Finding, then: str = "") -> str:
    """``then``: the second call, where it is another; vmap puts an axis before those of the first."""
    lines = [collected, f"one = {call}"]
    if finding.verdict is Verdict.NAN:
        return "\n".join([*lines, "got = one", f"assert not np.isnan(got[{finding.leaf!r}]).all(), 'NaN'"])
    lines += [
        f"# {case.about if case.claim else 'changed where nothing may depend on it' if case.changed else 'again'}",
        *case.changed.splitlines(),
        collected,
        f"other = {{k: x.reshape(one[k].shape) for k, x in {then}.items()}}" if then else f"other = {call}",
    ]
    if finding.leaf is None:
        return "\n".join(lines)
    at = f"[{finding.leaf!r}][{finding.index}]"
    lines += [f"print('before', one{at}, 'after', other{at})"]
    if case.judge == "close":
        return "\n".join([*lines, f"assert np.allclose(one{at}, other{at}, atol={finding.allowed!r})"])
    return "\n".join([*lines, f"assert one{at} == other{at}"])


def _refusal(call: str, collected: str, case: Case, finding: Finding) -> str:
    if finding.verdict is Verdict.SILENT:
        lines = [collected, f"got = {call}", "print({leaf: x.shape for leaf, x in got.items()})"]
        return "\n".join([*lines, f"raise AssertionError({'accepted: ' + case.about!r})"])
    return "\n".join([collected, f"{call}  # raises {finding.message}"])


def _held(call: str, collected: str, case: Case, finding: Finding) -> str:
    if finding.leaf is None or CHANGES not in finding.message:
        return "\n".join([collected, f"got = {call}", *_assertion(finding)])
    now = f"held {finding.leaf.removeprefix('grad ')}"
    then, now = (f"float(found[{leaf!r}][{finding.index}])" for leaf in (finding.leaf, now))
    return "\n".join([collected, f"found = {call}", f"print('then', {then}, 'now', {now})", f"assert {then} == {now}"])


def _by_script(call: str, collected: str, case: Case, finding: Finding) -> str:
    script = SCRIPTS[case.judge].replace("CALL", call).replace("MESSAGE", repr(finding.message))
    return "\n".join([collected, script, *(_assertion(finding) if case.judge == "merged" else [])])
