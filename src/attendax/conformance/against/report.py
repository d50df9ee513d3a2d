"""The answer to ``attendax diff``: the differences of two functions, or two layers, and an adapter."""

import dataclasses
import itertools
from typing import Any, NamedTuple

from attendax.exits import Refusal

from ..worker.errors import Failed
from . import comparing, comparing_layers, describing, describing_layers, examples, forms, writing
from .asking import GENERAL, SQUARE, TOLERANCE, Candidate, Equality, Probe, arrays, distance
from .combinations import COMBINATION
from .comparing import Difference
from .describing_layers import CandidateLayer
from .examples import Record
from .forms import Form
from .layers import SIZES
from .neighbours import holds, neighbour, refuted, with_options
from .options import BEGINS, MASKED, OPTIONS
from .plain_call import PlainCall
from .remote import Function

NUM_HEADS = 2
NO_ADAPTER = "there is no adapter"
NO_ANSWER = "no call was answered by both"
OF_EMPTY = "empty", "empty_lse"  # what a query without any key gets


class Comparison(NamedTuple):
    """The answer.

    Attributes:
        differences: the differences, those in numbers first.
        adapter: Python that makes the two equal; empty without an adapter.
        around: which of the two the adapter calls; empty if neither.
        why: without an adapter, the reason.
        checked: how far apart the two are, under the adapter if there is one.
        notes: what was not compared, and combinations of options that no known formula explains.
    """

    differences: tuple[Difference, ...]
    adapter: str = ""
    around: str = ""
    why: str = ""
    checked: Equality | None = None
    notes: tuple[str, ...] = ()

    @property
    def explained(self) -> bool:
        """Tell whether the differences that are named are all that there are."""
        return self.checked is not None and self.checked.worst is None and self.checked.cases > 0

    @property
    def equal(self) -> bool:
        """Tell whether the two are the same function."""
        return self.explained and not self.differences

    def text(self) -> str:
        """The lines that are printed."""
        lines = []
        for k, difference in enumerate(self.differences, 1):
            lines += [f"{k}. {difference}"] + [f"   {difference.shown}"] * bool(difference.shown)
        if not self.explained or self.checked is None:
            lines.append(f"Not explained{' by these differences' if self.differences else ''}: {self.why}")
        elif self.why:
            lines.append(f"Each function does so in {self.checked.cases} cases; {self.why}.")
        elif self.equal:
            varied = f": {self.checked.varied}" if self.checked.varied else ""
            lines.append(f"{self.checked}{varied}.")
        else:
            said = f"{self.checked} with this adapter"
            by_formula = ", which computes A by formula, because no argument of B makes B equal A:"
            lines += [said + (f" around {self.around}:" if self.around else by_formula), "", self.adapter.rstrip(), ""]
            lines += [f"The cases: {self.checked.varied}."] * bool(self.checked.varied)
        lines += [f"{note}." if COMBINATION in note else f"Not compared: {note}." for note in self.notes]
        return "\n".join(lines).rstrip()


def diff(a: Any, b: Any, *, layers: bool = False, heads: int = NUM_HEADS) -> Comparison:
    """Name the conventions by which two functions differ, and the adapter under which they are equal.

    Args:
        a, b: functions of (query, key, value, ...), in any layout and with keywords of any name that is known; or
            the paths of such, "module:function", "exec:COMMAND" or "onnx:FILE". A path, and a function that a
            module has, runs in a process of its own.
        layers: whether they are functions of (params, x) instead; ``layers.shapes`` has the names of the weights.
        heads: of the layers.

    Returns:
        A ``Comparison``; ``report.text()`` is what ``attendax diff`` prints.

    Raises:
        Refusal: one of them cannot be imported, or raises on every call.

    Example:
        >>> def one(query, key, value):
        ...     scores = np.exp(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
        ...     return scores / scores.sum(-1, keepdims=True) @ value
        >>> def other(query, key, value):
        ...     scores = np.exp(query @ key.swapaxes(-1, -2))
        ...     return scores / scores.sum(-1, keepdims=True) @ value
        >>> import numpy as np
        >>> print(diff(one, other).differences[0])
        scale if none is given: A multiplies by 1/√D; B multiplies by 1
    """
    if home := next((x for x in (a, b) if isinstance(x, str) and x.startswith("folder:")), ""):
        raise Refusal(f"{home} holds results, and can be asked nothing: `attendax judge {home[7:]}` judges them")
    made: list[Function] = []
    try:
        for fn in (a, b):
            made.append(Function(fn))
        if layers:
            one, other = (describing_layers.describe(fn, heads, letter) for fn, letter in zip(made, "AB", strict=True))
            return compare_layers(one, other)
        return compare(*(described(fn, letter) for fn, letter in zip(made, "AB", strict=True)))
    finally:
        for fn in made:
            fn.subject.close()


def described(fn: Function, letter: str) -> Candidate:
    """All that is found out about a function; refuse one that raises on every call, or takes packed sequences."""
    if {*BEGINS} & {*fn.required, *fn.meant}:
        said = "wrap it in a function of query, key and value that gives where they begin"
        raise Refusal(f"{letter}, {fn.path}, takes packed sequences; {said}")
    try:
        return describing.Describing(fn).candidate()
    except Failed as failed:
        hint = "; layers are compared with --layers" if fn.required[:1] == ["params"] else ""
        if not failed.said:
            asks = ", ".join(fn.required) or "nothing"
            said = f"{letter}, {fn.path}, has to be given {asks}, expected query, key and value, or one array of them"
            raise Refusal(f"{said}{hint or '; wrap it in such a function'}") from failed
        raise Refusal(f"{_raises(letter, fn, failed.said)}{hint}") from failed


def _raises(letter: str, fn: Function, said: str) -> str:
    return f"{letter}, {fn.path}, raises on every call that was tried; the first said: {said}"


def compare(a: Candidate, b: Candidate) -> Comparison:
    """The report on two functions that are described; if that is not enough, also by the table."""
    if not (a.known or b.known):
        return _unknown(a, b)
    found = _compare(a, b) if a.known and b.known else _unknown(a, b)
    if found.equal and all(with_options(x, y.form) == x.form for x, y in ((a, b), (b, a))):
        return found
    ways = [[x] if x.known else _as_called(x) for x in (a, b)]
    for one, other in itertools.product(*ways):
        near = [neighbour(x, y, _sizes(a, b)) for x, y in ((one, other), (other, one))]
        several = [f"{letter}: {x.several}" for letter, x in zip("AB", near, strict=True) if x and x.several]
        if several:
            return found if found.explained else found._replace(why="; ".join([*several, found.why]))
        by_table = _compare(near[0] or one, near[1] or other) if any(near) else found
        if by_table.explained or (a.known and b.known and not found.explained):
            return by_table
    return found


def _sizes(a: Candidate, b: Candidate) -> tuple[int, ...]:
    return max(a.sizes, b.sizes, key=lambda x: x == SQUARE)


def _as_called(x: Candidate) -> list[Candidate]:
    """A function of no known formula, in each layout of all axes in which it gives a result of the shape of one."""
    call, probe = PlainCall(x.fn), Probe(arrays(GENERAL), {})
    unknown = {name: describing.NOT_TAKEN for name in x.fn.names if name not in x.fn.required}
    forms_of = (form for form in forms.layouts(x.fn, GENERAL) if len(form.layout) == 4)
    taken = ((form, call.answer(form, probe)) for form in forms_of)
    fits = [form for form, found in taken if found and found[0].shape == (*GENERAL[:3], GENERAL[5])]
    made = (dataclasses.replace(form, arrays=x.fn.kind(), grouped=True) for form in fits)
    return [Candidate(x.fn, form, unknown=unknown) for form in made]


def _compare(a: Candidate, b: Candidate) -> Comparison:
    told = list(comparing.differences(a, b))
    found = tuple(x for x in told if x.shown or x.name not in comparing.SOLVED_AXES)
    if MASKED & a.form.options.keys() & b.form.options.keys():
        for axis in (x.name for x in told if x.name in OF_EMPTY and x not in found):
            a, b = _unseen(a, b, axis)
    if not found:
        both, grouped = set(a.form.options) & set(b.form.options), a.form.grouped and b.form.grouped
        mine, theirs = (dataclasses.replace(x.form.keeping(both), grouped=grouped, how=a.form.how) for x in (a, b))
        checked, why, names = _held(a, b, mine, theirs)
        excluded = (f"{c}'s {k}: {x.unknown[k]}" for c, x in (("A", a), ("B", b)) for k in x.unknown if k in names)
        why = "; ".join([why, *excluded]) if why else ""
        notes = (*checked.refused, *_notes(a, b, set(mine.options), names))
        return Comparison((), why=why, checked=None if why else checked, notes=notes)
    why = ""
    for letter, own, around in (("B", a, b), ("A", b, a)):
        form = _answerable(own.form, around.form)
        try:
            checked, example, names = _held(own, around, form, around.form, "AB" if letter == "B" else "BA")
        except writing.NoAdapter as error:
            why = why or f"{NO_ADAPTER} around {letter}: {error}"
            continue
        if not example:
            text = writing.adapter(form, around.form)
            notes = _notes(a, b, set(form.options), names)
            return Comparison(found, text, letter, "", checked, (*checked.refused, *notes))
        why = why or f"with an adapter around {letter} the two still differ: {example}"
    notes = _notes(a, b, set(_answerable(a.form, b.form).options))
    if why.startswith(NO_ADAPTER) and (cases := min(holds(a, b, a.sizes), holds(b, a, b.sizes))):
        return Comparison(found, "", "", why, Equality(cases, 0.0), notes)
    against = {x: words for x in found if (words := _refuted(a, b, x))}
    why = "; ".join([why, *against.values()])
    return Comparison(tuple(x for x in found if x not in against), "", "", why, None, notes)


def _unseen(a: Candidate, b: Candidate, axis: str) -> tuple[Candidate, Candidate]:
    """The two by one value of a convention that no input shows: that of the one which may have it."""
    never = [x.form.how["fill"] != forms.BY_LAW["fill"] for x in (a, b)]  # a query without any key
    lawful = b.form.how[axis] == forms.BY_LAW[axis] if never[0] == never[1] else never[1]
    value = (a if lawful else b).form.how[axis]
    return a.by(a.form.but(**{axis: value})), b.by(b.form.but(**{axis: value}))


def _refuted(a: Candidate, b: Candidate, difference: Difference) -> str:
    """Words for an input by which one of the two does not do what is said of it; empty if there is none."""
    axes = comparing.SOLVED_AXES.get(difference.name, ())
    for x, said, other in ((a, f"A {difference.a}", b), (b, f"B {difference.b}", a)) if axes else ():
        if probe := refuted(x, axes, other.form, _sizes(a, b)):
            return f"{comparing.WORDS[difference.name]} is excluded: {said}, but not for {examples.told(probe, x.form)}"
    return ""


def _held(
    a: Candidate, b: Candidate, mine: Form, theirs: Form, letters: str = "AB"
) -> tuple[Equality, str, frozenset[str]]:
    """The adapter around B is run, and compared: how near it is.

    Then a small input on which the two differ that should be equal, and the keywords that were given to both as they
    are.
    """
    one, other = a.by(mine), b.by(theirs).around(mine)
    sizes = _sizes(a, b)
    checked = examples.equality(one, other, sizes, letters)
    if checked.worst is None:
        apart = comparing.set_apart(a, b, mine, theirs, sizes) if checked.cases else comparing.Apart(NO_ANSWER)
        words = [name for name in a.fn.names if name in apart.names]  # by A's names
        as_they_are = f"; given to both unchanged: {', '.join(words)}" * bool(words)
        refused = tuple(dict.fromkeys((*checked.refused, *apart.refused)))
        return checked._replace(varied=checked.varied + as_they_are, refused=refused), apart.shown, apart.names
    probes = [*examples.small({}), *examples.asking(*checked.worst.options), checked.worst]
    return checked, examples.smallest(one, other, probes, Record([], [])), frozenset()


def _answerable(mine: Form, theirs: Form) -> Form:
    """The form without the options that nothing around the other can stand for."""
    lacking = {"return_lse", "bias", "softcap"} - set(theirs.options)
    lacking |= {"mask"} if not {"mask", "bias"} & set(theirs.options) else set()
    return mine.keeping(set(mine.options) - lacking)


def _notes(a: Candidate, b: Candidate, compared: set[str], directly: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Options that were not compared: by no convention that both have, nor as both are given them.

    Combinations of options are compared, and are told if no known formula explains them.
    """
    found = []
    for letter, x in (("A", a), ("B", b)):
        names: dict[str, list[str]] = {}
        for name, why in x.unknown.items():
            if name.startswith(COMBINATION):
                found.append(f"{letter}'s {name}: {why}")
            elif name not in directly:
                names.setdefault(why, []).append(name)
        found += [f"{letter}'s {', '.join(some)} ({why})" for why, some in names.items()]
        found += [f"{letter}'s mask as the word 'causal', {x.form.word}"] * bool(x.form.word)
    lacking = a.form.options.keys() - compared, b.form.options.keys() - a.form.options.keys()
    for letter, x, other, some in zip("AB", (a, b), (b, a), lacking, strict=True):
        lacked = [name for name in some if not {*OPTIONS[name].names} & {*other.unknown}]  # these are told above
        names_of = {name: option.name or "lse" for name, option in x.form.options.items()}
        alone = [told for name, told in names_of.items() if name in lacked and told not in directly]
        found += [f"{', '.join(alone)}, which {letter} alone has"] * bool(alone)
    return tuple(found)


def _unknown(a: Candidate, b: Candidate) -> Comparison:
    """Words for two of which one is of no known formula: they are asked alone, without options."""
    letters = " and ".join(letter for letter, x in (("A", a), ("B", b)) if not x.known)
    notes = (f"any keyword, for the formula of {letters} is not known",)
    plain, probe = [], Probe(arrays(GENERAL), {})
    for letter, x in (("A", a), ("B", b)):
        call = PlainCall(x.fn)
        answers = [(form, call.answer(form, probe)) for form in forms.layouts(x.fn, GENERAL) if call.takes(form, probe)]
        kind = x.fn.kind()
        plain.append([(Candidate(x.fn, dataclasses.replace(form, arrays=kind)), out) for form, out in answers if out])
        if not plain[-1]:
            raise Refusal(_raises(letter, x.fn, call.first_error or "nothing, as it takes no three arrays"))
    for (one, mine), (other, theirs) in itertools.product(*plain):
        if mine[0].shape == (2, 4, 3, 6) and distance(theirs, mine) <= TOLERANCE:
            found = compare(one, other)
            by_table = found.explained and not found.adapter  # so that the formula is known
            return found if by_table else found._replace(notes=notes)
    said = f"the formula of {letters} is not known, and in no layout do the two give the same numbers"
    shown = examples.smallest(plain[0][0][0], plain[1][0][0], [*examples.asking(), *examples.small({}, heads=2), probe])
    return Comparison((), "", "", "; ".join(filter(None, (said, shown))), None, notes)


def compare_layers(a: CandidateLayer, b: CandidateLayer) -> Comparison:
    """The report on two layers that are described."""
    plain = comparing_layers.equality(a, lambda params, x, **options: b.fn(params, x, **options))
    sizes = ", ".join(str(x[:4]) for x in SIZES)
    notes = (f"some of the sizes (B, T, M, F) {sizes}, at which A raises",) * (plain.cases < comparing_layers.ALL_CASES)
    if plain.worst is None:
        return Comparison((), checked=plain, notes=notes)
    found = tuple(comparing_layers.differences(a, b))
    if unknown := " and ".join(letter for letter, x in (("A", a), ("B", b)) if not x.known):
        said = f"{unknown} is none of the layers that are known"
        return Comparison((), why=f"{said}; the results differ by {plain.apart:.2g} of the largest number")
    if not found:
        return Comparison((), why=f"by no convention that is known do they differ, and they do for {plain.worst}")
    code, around = comparing_layers.adapter(a, b)
    checked = comparing_layers.equality(a, b.fn.adapted(code))
    if checked.worst is not None:
        why = f"an adapter makes them equal at the sizes that were searched, and not for {checked.worst}"
        return Comparison(found, why=why)
    if not around and (held := comparing_layers.equality(b, b.fn.adapted(comparing_layers.formula(b)))).worst:
        why = f"what was found of B holds at the sizes that were searched, and not for {held.worst}"
        return Comparison(found, why=why)
    return Comparison(found, code, around, "", checked, notes)
