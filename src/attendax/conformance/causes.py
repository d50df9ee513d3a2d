"""Causes: what groups faults, so that one typing error is one finding with sixty cases."""

import enum
from typing import NamedTuple


class Harm(enum.StrEnum):
    """What a cause does to its users, the worst first."""

    NUMBERS = "wrong numbers"
    GRADIENTS = "wrong gradients"
    CRASH = "crash"
    ROBUSTNESS = "robustness gap"
    ACCEPTED = "mistake accepted"

    @property
    def kind(self) -> str:
        """As it is counted: wrong numbers (gradients, too), crash, or robustness gap."""
        return {Harm.GRADIENTS: "wrong numbers", Harm.ACCEPTED: "robustness gap"}.get(self, self.value)


KINDS = ("wrong numbers", "crash", "robustness gap")


class Cause(NamedTuple):
    """One reason for some faults.

    Attributes:
        name: what is wrong, in a sentence.
        harm: to users.
        cases: the names of the cases that show it, the plainest first.
        tried: how many of them were computed as if this were the reason, and agreed.
        remedy: a setting that declares it, or what to do.
        where: the file and the lines, where somebody has read them.
        report: what to send to the maintainers.
        script: what shows it without attendax.
    """

    name: str
    harm: Harm
    cases: tuple[str, ...]
    tried: int = 0
    remedy: str = ""
    where: str = ""
    report: str = ""
    script: str = ""
