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
        numbers = [(kind, *self.judged[kind]) for kind in kinds.BY_DIRECTION if kind in self.judged]
        words = [number_of(n, kind) if right == n else f"{right} of {n} {kind}" for kind, n, right in numbers]
        first = " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
        parts = [f"Right in {first}."] if first else []
        parts += [f"Not judged: {self._not_judged()}."] if self.left else []
        return " ".join([*parts, *(f"{gap}." for gap in self.gaps)])

    def _not_judged(self) -> str:
        """Kinds by reason: "24 masks, 6 lse (not offered), 3 windows (...)"."""
        by_reason: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
        for (reason, kind), number in self.left.items():
            by_reason[reason].append((kind, number))
        ordered = sorted(by_reason.items(), key=lambda item: -sum(n for _, n in item[1]))
        told = []
        for reason, counts in ordered[:MOST_REASONS]:
            named = [number_of(n, kind) for kind, n in counts[:MOST_KINDS]]
            rest = sum(n for _, n in counts[MOST_KINDS:])
            told.append(f"{', '.join([*named, *[f'{rest} others'] * bool(rest)])} ({reason})")
        rest = sum(n for _, counts in ordered[MOST_REASONS:] for _, n in counts)
        return ", ".join([*told, *[f"{rest} for other reasons"] * bool(rest)])

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
    found = [(kinds.kinds_of(o.case, dtype), not o.verdict.fails) for o in outcomes if o.verdict not in LEFT]
    numbers = ((kind, [right for of, right in found if kind in of]) for kind in kinds.KINDS)
    judged = {kind: (len(rights), sum(rights)) for kind, rights in numbers if rights}
    left = collections.Counter((_reason(o), _kind_left(o)) for o in outcomes if o.verdict in LEFT)
    asked = [o for o in outcomes if kinds.directed(o.case) == kinds.GRADIENTS and o.finding.lack != kinds.GRADIENTS]
    gaps = []
    if gradients and asked and kinds.GRADIENTS not in judged:
        gaps.append(f"Gradients were asked for ({gradients}), and none was judged")
    reasons = collections.Counter(o.finding.message for o in outcomes if o.verdict is Verdict.NOT_JUDGED)
    if not _is_much(outcomes):
        reasons.pop(LEFT_OUT, None)
    gaps += [f"{NOT_JUDGED.get(why, why)} for {n} of {len(outcomes)} cases" for why, n in reasons.items()]
    gaps += [f"Required and not judged: {kind}" for kind in require if kind not in judged]
    gaps += [gap for kind in (kinds.RESULTS, kinds.GRADIENTS) if (gap := _hardly(outcomes, kind))]
    return Coverage(judged, dict(left.most_common()), tuple(gaps))


def _is_much(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether much was left out for want of time: most of the ladder, or a third of the other cases."""
    left = [o for o in outcomes if o.finding.message == LEFT_OUT]
    asked = [o for o in outcomes if o.verdict is not Verdict.NOT_OFFERED and "ladder: " not in o.case.name]
    return any("ladder: " in o.case.name for o in left) or len(left) > SHARE * len(asked)


def _hardly(outcomes: Sequence[Outcome], kind: str) -> str:
    """Say that it refused most of the sizes of the cases whose keywords it offers and whose traits are not lacking."""
    asked = [o for o in outcomes if kinds.directed(o.case) == kind and (o.verdict not in LEFT or o.finding.refused)]
    sizes = {tuple((SIZES | o.case.sizes).values()) for o in asked}
    judged = {tuple((SIZES | o.case.sizes).values()) for o in asked if o.verdict not in LEFT}
    if not judged or len(sizes) <= FEW or len(judged) >= SHARE * len(sizes):
        return ""
    return f"Hardly judged: {kind} at {len(judged)} of {len(sizes)} sizes, and it refused the others"


def _kind_left(outcome: Outcome) -> str:
    """The kind of a case that is not judged: the trait that is lacking, or the rarest of its keywords."""
    lack, own = outcome.finding.lack, kinds.directed(outcome.case)
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
