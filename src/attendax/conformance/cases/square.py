"""Cases at the sizes that restricted kernels take: causal only, T = S only, multiples of a block, one width."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from . import CASES, can_be_made, distinct
from .case import SIZES, Case

SQUARE, CAUSAL, BLOCK, WIDTHS = "T != S", "not causal", "lengths of no block", "widths of no block"
ONE_WIDTH = {"D != 64": (64,), "D != 128": (128,)}
SEGMENTS_APART = "segments apart"  # ids of queries that are not those of keys
SYMMETRIC, LIFTED = "asymmetric windows", ("mask of rank 2", "bias of rank 2")
WITH = "{} with T != S"  # an option that is taken with T = S alone
ALIKE = {WITH.format(x): x for x in ("mask", "bias", "is_causal", "window", "query_segment_ids")}
TRAITS = (SQUARE, CAUSAL, BLOCK, WIDTHS, *ONE_WIDTH)
TIME = "larger sizes"
MOST_LENGTH, MOST_AGAIN = 600, 2**20  # T and S of a case that is asked at others, scores of one that is asked twice


class Restrictions(NamedTuple):
    """The calls that a function takes."""

    square: bool = False  # only T = S
    causal: bool = False  # only with ``is_causal``
    block: int = 1  # T and S are multiples of it
    widths: tuple[int, ...] = ()  # D = V is one of them; any where it is empty
    most: int = 0  # the largest number of scores that it does in a moment; any where it is 0
    alike: tuple[str, ...] = ()  # options that it takes with T = S alone

    def of(self, case: Case) -> "Restrictions":
        """Its restrictions with the options of a case."""
        return self._replace(square=self.square or not case.options.isdisjoint(self.alike))

    def lacking(self, case: Case) -> list[str]:
        """The traits of a case that it does not have."""
        sizes = SIZES | case.sizes
        T, S, widths = sizes["T"], sizes["S"], {sizes["D"], sizes["V"]}
        lengths = {T, S, *[T // 2] * ("T // 2" in case.changed), *[1] * ("-1 :" in case.changed)}  # of its calls
        holds = {
            SQUARE: self.square and T != S,
            **{WITH.format(x): x in case.options and T != S for x in self.alike},
            CAUSAL: self.causal and "is_causal=True" not in case.call,
            BLOCK: any(n % self.block for n in lengths),
            self.of_width(): bool(self.widths) and not widths <= set(self.widths),
            TIME: bool(self.most) and case.pairs > self.most,
        }
        return [trait for trait, lacks in holds.items() if lacks]

    def of_width(self) -> str:
        """The trait that it lacks where it has some widths."""
        return next((trait for trait, widths in ONE_WIDTH.items() if widths == self.widths), WIDTHS)

    def without(self) -> dict[str, "Restrictions"]:
        """The traits that it lacks, and for each the form that has it."""
        wider = {SQUARE: self._replace(square=False), CAUSAL: self._replace(causal=False)}
        wider |= {BLOCK: self._replace(block=1), self.of_width(): self._replace(widths=())}
        return {trait: form for trait, form in wider.items() if form != self}

    def sizes(self, own: Mapping[str, int], again: int = 0) -> dict[str, int]:
        """Sizes that it takes in place of a case's own: its lengths are in the same order, unless T = S is needed."""
        given, block = {}, max(self.block, 64 * again)
        lengths = {axis: 1 + again + (own[axis] > min(own["T"], own["S"])) for axis in "TS"}
        if block > 1:
            given = {axis: block * (1 + again if self.square else times) for axis, times in lengths.items()}
        elif self.square and own["T"] != own["S"]:
            given = dict.fromkeys("TS", max(own["T"], own["S"]))
        if widths := self.widths or (128,) * again:
            given |= dict.fromkeys("DV", widths[again % len(widths)])
        return given


def twins(
    cases: Iterable[Case], form: Restrictions, lacks: Mapping[str, str], offers: Callable[[Case], bool]
) -> list[Case]:
    """The cases, each at the sizes, and with the masks and windows, that a form takes.

    Each is asked twice: as near to its own sizes as can be, and at lengths of 128 or more and another width. A case
    that is not offered at all, or makes no sense there, stays as it is.
    """
    if form == Restrictions() and not {SYMMETRIC, SEGMENTS_APART, *LIFTED}.intersection(lacks):
        return list(cases)
    found = []
    for case in cases:
        rounds = range(1 if form._replace(alike=()) == Restrictions() else 2)
        rounds = rounds if offers(case) and "ladder: " not in case.name else range(0)
        found += [twin for again in rounds if (twin := _twin(case, form, lacks, again))] or [case]
    return distinct(found)


def _twin(case: Case, form: Restrictions, lacks: Mapping[str, str], again: int) -> Case | None:
    """A case as a form takes it; None where it makes no sense, or would take long, or be the same once more."""
    own = SIZES | case.sizes
    given = form.of(case).sizes(own, again)
    if max(own["T"], own["S"]) > MOST_LENGTH or case.judge.startswith("dropped"):
        return None
    twin = case.sized(given) if given else case
    twin = twin and _causal(twin) if form.causal else twin
    twin = twin and _shaped(twin, lacks)
    if not twin or form.lacking(twin) or (again and twin.pairs > MOST_AGAIN) or not can_be_made(twin):
        return None
    return twin._replace(name=f"{twin.name}, T = {given['T']}") if again else twin


def _causal(case: Case) -> Case | None:
    """The case with ``is_causal``: no row of a mask becomes empty by it that was not."""
    if "is_causal=" in case.call:
        return case
    if "segment" in case.call:
        return None
    seen = "\nmask = np.array(mask); mask[..., 0] = True" if "mask=" in case.call and case.law != "L5" else ""
    call = ", ".join(filter(None, (case.call, "is_causal=True")))
    return case._replace(call=call, lines=case.lines + seen, name=f"{case.name}, causal")


def _shaped(case: Case, lacks: Mapping[str, str]) -> Case:
    """The case with a symmetric window, a mask or bias of rank 4, or one list of segment ids, if others are lacking."""
    window = re.search(r"window=\((\d+), (\d+)\)", case.call)
    if SYMMETRIC in lacks and window and window[1] != window[2]:
        wide = max(int(window[1]), int(window[2]))
        call = case.call.replace(window[0], f"window=({wide}, {wide})")
        case = case._replace(call=call, about=f"{case.about}; as many back as ahead")
    sizes, ids = SIZES | case.sizes, "query_segment_ids=q_ids, key_segment_ids=k_ids"
    if SEGMENTS_APART in lacks and ids in case.call and sizes["T"] == sizes["S"]:
        case = case._replace(call=case.call.replace("q_ids", "k_ids"), about=f"{case.about}; the same ids for both")
    for name in ("mask", "bias"):
        if f"{name} of rank 2" in lacks and f"{name}={name}" in case.call:
            lift = f"{name} = {name}.reshape((1,) * (4 - {name}.ndim) + {name}.shape)"
            case = case._replace(lines=f"{case.lines}\n{lift}", about=f"{case.about}; rank 4")
    return case


FORMS = tuple(  # the widest first: T = S, causal, blocks of 64 and 128, widths of 64 and 128
    Restrictions(square, causal, block, widths)
    for block, widths in ((1, ()), (1, (64,)), (1, (128,)), (64, (64,)), (64, (128,)), (128, (64,)), (128, (128,)))
    for causal, square in ((False, False), (False, True), (True, False), (True, True))
)


def plain_of(
    form: Restrictions, sizes: Mapping[str, int], lines: str = "", words: str = "", case: Case = CASES[0]
) -> Case:
    """The plainest case, or another without options, as a form takes it, at sizes, with more lines and keywords."""
    case = case._replace(sizes=case.sizes | form.sizes(SIZES | case.sizes))
    call = ", ".join(filter(None, ("is_causal=True" if form.causal else "", words)))
    return (case.sized(sizes) or case)._replace(lines=lines, call=call)
