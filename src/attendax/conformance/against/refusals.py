"""Calls that one of two functions refuses: they are not compared, and named."""

from typing import NamedTuple

from ..worker.errors import Failed
from .asking import Probe
from .forms import GIVEN, Form

NOT_OFFERED = "NotImplementedError"


class Refused(NamedTuple):
    """A call, and which of the two refuses it with which words."""

    letter: str
    probe: Probe
    said: str


class Record(NamedTuple):
    """The calls that both answered, and those that one of the two refused."""

    compared: list[Probe]
    refused: list[Refused]
    crashes: bool = True  # whether it is a difference if A raises anything else, and B does not

    def told(self, form: Form) -> tuple[str, ...]:
        """Words for what is not compared, by the names of a form: the fewest options that are refused together."""
        common, notes = {frozenset(x.options) for x in self.compared}, list[str]()
        for letter in sorted({x.letter for x in self.refused}):
            of_one: dict[frozenset[str], Refused] = {}
            for x in sorted((x for x in self.refused if x.letter == letter), key=lambda x: len(x.probe.options)):
                options = frozenset(x.probe.options)
                if not any(fewer <= options for fewer in of_one):
                    of_one[options] = x
            calls: dict[str, list[str]] = {}
            for options, x in of_one.items():
                calls.setdefault(x.said, []).append(_words(x.probe, form, sizes=options in common))
            notes += [
                f"{', '.join(dict.fromkeys(words))}, which {letter} refuses ({said})" for said, words in calls.items()
            ]
        return tuple(notes)


def is_refusal(failed: Failed) -> bool:
    """Tell whether somebody wrote this error for such a call; a crash inside is a difference."""
    return failed.refusal or failed.said.startswith(NOT_OFFERED)


def _words(probe: Probe, form: Form, *, sizes: bool) -> str:
    """The options of a call, and its sizes if such calls of other sizes are compared."""
    names = [(form.options[k].name if k in form.options else "") or k.removeprefix(GIVEN) for k in probe.options]
    together = " and ".join(names) + " together" * (len(names) > 1)
    if not sizes:
        return together or "calls without options"
    (B, N, T, D), (_, G, S, _) = (x.shape for x in probe.arrays[:2])
    at = f"some sizes, such as B={B}, N={N}, G={G}, T={T}, S={S}, D={D}"
    return f"{at}, with {together}" if together else at
