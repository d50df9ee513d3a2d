"""A law on trial: its name, what it asks, and the function that judges it."""

from collections.abc import Callable
from typing import NamedTuple

from ..cases.case import EVERYTHING, FORWARD, NUMBERS, Case
from ..report.outcomes import MODEL_LAWS as TITLES
from .trial import Found, Trial

__all__ = ["TITLES", "Law"]


class Law(NamedTuple):
    """One question about a model.

    Attributes:
        law: one of ``TITLES``, of which those come first from whose faults others follow.
        name: of the question.
        about: what is asked, in a sentence.
        judge: gives what is found of a model.
        needs: traits without which it cannot be asked.
        level, profile: the least that include it, as of cases.
    """

    law: str
    name: str
    about: str
    judge: Callable[[Trial], Found]
    needs: tuple[str, ...] = ()
    level: str = FORWARD
    profile: str = NUMBERS

    @property
    def case(self) -> Case:
        """As reports have it."""
        direction = "forward" if self.level == FORWARD else "gradient" if self.level != EVERYTHING else "second"
        return Case(self.name, self.law, self.about, direction=direction, least=self.profile)
