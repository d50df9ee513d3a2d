"""Which faults have one cause: those of a law, and those of other laws that follow from it."""

from collections.abc import Sequence

from ..judge.verdicts import Verdict
from ..report.outcomes import Cause, Harm, Outcome
from .law import TITLES

AGAIN = "ways: again"
FOLLOW = {  # a law -> those that may fail for no other reason than that it does
    "batch": set(TITLES),
    "future": {"window", "positions", "padding", "packing", "cache", "ways", "gradient"},
    "past": {"window", "positions", "padding", "packing", "gradient"},
    "window": {"padding", "packing", "cache", "ways", "gradient"},
    "positions": {"padding", "packing", "cache"},
    "padding": {"ways", "gradient"},
    "packing": {"gradient"},
    "heads": {"gradient"},
}


def causes(outcomes: Sequence[Outcome], usual: dict[str, str]) -> tuple[Cause, ...]:
    """One for each law whose faults follow from no other, in the order of ``TITLES``.

    Args:
        outcomes: with a fault.
        usual: by the name of a case, what usually causes it.
    """
    left, found = list(outcomes), []
    at_random = any(o.case.name == AGAIN for o in outcomes)  # then nothing that was compared is sure
    for law in ("ways", *TITLES) if at_random else TITLES:
        own = [o for o in left if o.case.law == law]
        if not own:
            continue
        first = own[0]
        follow = set(TITLES) if law == "ways" and at_random else FOLLOW.get(law, set()) - {law}
        mine = own + [o for o in left if o not in own and (o.case.law in follow or o.finding == first.finding)]
        left = [o for o in left if o not in mine]
        broken = all(o.verdict in (Verdict.OBSCURE, Verdict.CRASH, Verdict.TIMEOUT) for o in own)
        harm = Harm.CRASH if broken else Harm.GRADIENTS if law == "gradient" else Harm.NUMBERS
        remedy = f"usually: {usual[first.case.name]}" if usual.get(first.case.name) else ""
        name = f"{law}: {first.finding.message.partition(': another token')[0].partition(': row')[0]}"
        names = tuple(o.case.name for o in mine)
        found.append(Cause(name, harm, names, remedy=remedy, script=first.reproduction))
    return tuple(found)
