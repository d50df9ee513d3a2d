"""Coverage: numbers of cases that were judged and that were not, by kind; a part of the verdict."""

import collections
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..cases import kinds
from ..cases.case import SIZES
from ..judge.verdicts import LEFT_OUT, NO_TIME, Verdict
from .outcome import Outcome

SHARE, FEW = 1 / 3, 5  # of the sizes that were asked, at least so much is judged; where no more are asked, any
LEFT = (Verdict.NOT_OFFERED, Verdict.NOT_JUDGED)
NOT_JUDGED = {
    NO_TIME: "No time was left", LEFT_OUT: "There was no time", "no results": "No results", "no folder": "No folder",
}  # a reason, in a sentence  # fmt: skip
MOST_KINDS, MOST_REASONS = 6, 4  # that a line names


class Coverage(NamedTuple):
    """The coverage of a run."""

    judged: dict[str, tuple[int, int]]  # for each kind, how many cases were judged, and how many of them are right
    left: dict[tuple[str, str], int]  # for each reason and kind, how many cases were not judged
    gaps: tuple[str, ...]  # sentences, each a reason why nothing is shown, whatever was judged

    def __str__(self) -> str:
        """A sentence of what was judged, one of what was not, and the gaps."""
        words = []
        for kind in kinds.BY_DIRECTION:
            judged, right = self.judged.get(kind, (0, 0))
            if judged:
                words.append(number_of(judged, kind) if right == judged else f"{right} of {judged} {kind}")
        first = " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)
        parts = [f"Right in {first}."] if first else []
        parts += [f"Not judged: {_left(self.left)}."] if self.left else []
        return " ".join([*parts, *(f"{gap}." for gap in self.gaps)])

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        judged = {kind: {"judged": judged, "right": right} for kind, (judged, right) in self.judged.items()}
        left = [{"reason": reason, "kind": kind, "cases": n} for (reason, kind), n in self.left.items()]
        return {"judged": judged, "not_judged": left, "gaps": list(self.gaps), "said": str(self)}


def coverage(outcomes: Sequence[Outcome], dtype: str, gradients: str = "", require: Iterable[str] = ()) -> Coverage:
    """Count the cases that were judged.

    ``gradients`` says why they are asked for, where the function has a rule of its own; kinds of ``require`` have to be
    among those that were judged.
    """
    total: collections.Counter[str] = collections.Counter()
    right: collections.Counter[str] = collections.Counter()
    left: collections.Counter[tuple[str, str]] = collections.Counter()
    for outcome in outcomes:
        if outcome.verdict in LEFT:
            left[_reason(outcome), _kind_left(outcome)] += 1
            continue
        found = kinds.kinds_of(outcome.case, dtype)
        total.update(found)
        right.update(found if not outcome.verdict.fails else ())
    judged = {kind: (total[kind], right[kind]) for kind in kinds.KINDS if total[kind]}
    return Coverage(judged, dict(left.most_common()), tuple(_gaps(outcomes, total, gradients, require)))


def _gaps(
    outcomes: Sequence[Outcome], judged: collections.Counter[str], gradients: str, require: Iterable[str]
) -> list[str]:
    gaps = []
    asked = [o for o in outcomes if kinds.directed(o.case) == kinds.GRADIENTS]
    if gradients and asked and not judged[kinds.GRADIENTS] and any(o.finding.lack != kinds.GRADIENTS for o in asked):
        gaps.append(f"Gradients were asked for ({gradients}), and none was judged")
    reasons = collections.Counter(o.finding.message for o in outcomes if o.verdict is Verdict.NOT_JUDGED)
    if not _is_much(outcomes):
        reasons.pop(LEFT_OUT, None)
    gaps += [f"{NOT_JUDGED.get(why, why)} for {n} of {len(outcomes)} cases" for why, n in reasons.items()]
    gaps += [f"Required and not judged: {kind}" for kind in require if not judged[kind]]
    return gaps + [gap for kind in (kinds.RESULTS, kinds.GRADIENTS) if (gap := _hardly(outcomes, kind))]


def _is_much(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether much was left out for want of time: most of the ladder, or a third of the other cases."""
    left = [o for o in outcomes if o.finding.message == LEFT_OUT]
    asked = [o for o in outcomes if o.verdict is not Verdict.NOT_OFFERED and "ladder: " not in o.case.name]
    return any("ladder: " in o.case.name for o in left) or len(left) > SHARE * len(asked)


def _hardly(outcomes: Sequence[Outcome], kind: str) -> str:
    """Say that it refused most of the sizes of the cases whose keywords it offers and whose traits are not lacking."""
    sizes: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    for outcome in outcomes:
        offered = outcome.verdict not in LEFT
        if kinds.directed(outcome.case) == kind and (offered or outcome.finding.refused):
            sizes[offered].add(tuple((SIZES | outcome.case.sizes).values()))
    judged, asked = len(sizes[True]), len(sizes[True] | sizes[False])
    if not judged or asked <= FEW or judged >= SHARE * asked:
        return ""
    return f"Hardly judged: {kind} at {judged} of {asked} sizes, and it refused the others"


def _kind_left(outcome: Outcome) -> str:
    """The kind of a case that is not judged: the trait that is lacking, or the rarest of its keywords."""
    lack = outcome.finding.lack
    own = kinds.directed(outcome.case)
    if lack or own == kinds.REFUSALS:
        return kinds.OF_OPTIONS.get(lack, lack) or own
    return own if own not in (kinds.RESULTS, kinds.GRADIENTS) else next(iter(kinds.options_of(outcome.case)), own)


def _reason(outcome: Outcome) -> str:
    """The reason why it is not judged, in few words."""
    finding = outcome.finding
    message = finding.message.removeprefix(f"{finding.lack}: ")
    if message.startswith("no argument"):
        _, never, names = message.partition("; never given: ")
        return f"not offered{never}{names}"
    if finding.refused and not message.startswith("raises"):
        words = message.removeprefix("refused: ")
        message = f"refused: {re.sub(r'^[A-Za-z.]+(Error|Exception): ', '', words)!r}"
    return message if len(message) <= 60 else f"{message[:59]}…"


def number_of(count: int, kind: str) -> str:
    """A number of a kind in words: 1 mask, 2 masks."""
    one = kind if kind in (kinds.GROUPED, "lse") else kind.removesuffix("es" if kind == "biases" else "s")
    return f"{count} {one if count == 1 else kind}"


def _left(left: dict[tuple[str, str], int]) -> str:
    """Kinds by reason: "24 masks, 6 lse (not offered), 3 windows (...)"."""
    by_reason: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for (reason, kind), number in left.items():
        by_reason[reason].append((kind, number))
    ordered = sorted(by_reason.items(), key=lambda item: -sum(n for _, n in item[1]))
    told = []
    for reason, counts in ordered[:MOST_REASONS]:
        named = [number_of(n, kind) for kind, n in counts[:MOST_KINDS]]
        rest = sum(n for _, n in counts[MOST_KINDS:])
        told.append(f"{', '.join([*named, *([f'{rest} others'] if rest else [])])} ({reason})")
    rest = sum(n for _, counts in ordered[MOST_REASONS:] for _, n in counts)
    return ", ".join([*told, *([f"{rest} for other reasons"] if rest else [])])
