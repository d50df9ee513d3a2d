"""The settings of a run of the kit, as one value: seed, dtype, profile, sizes, precision and time limits."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from attendax.legible import did_you_mean

from . import kinds
from .case import LAW, PROFILES, SIZES
from .kinds import DTYPES as DTYPES

PRECISIONS = ("highest", "tf32", "bf16")
SEEDS = 10**9


def drawn(seed: int | None = None) -> int:
    """The seed that is given, or a random one."""
    return int.from_bytes(os.urandom(8), "little") % SEEDS if seed is None else seed


class How(NamedTuple):
    """How a case is judged.

    Attributes:
        seed: of the numbers.
        dtype: of the cases that do not choose their own.
        profile: "numbers", "robust" or "law": which cases are run, and how much rounding is allowed.
        sizes: of the axes, in place of those of the cases.
        precision: of products of float32 arrays: "highest", "tf32" or "bf16".
        require: names of ``kinds.KINDS``; at least one case of each kind must be judged.
        claims: names of ``kinds.CLAIMS``; what the function claims of itself.
        timeout: seconds that the function may take for a case.
        total_timeout: seconds for all cases; the cases that are left then are not judged.
        repeat: how often each case is judged; where a call is cheap three times, unless given.
        budget: seconds of the judge for cases at sizes as people run them, as ``ladder`` draws them.
    """

    seed: int = 0
    dtype: str = "float32"
    profile: str = LAW
    sizes: Mapping[str, int] = {}
    precision: str = "highest"
    require: tuple[str, ...] = ()
    timeout: float = 60.0
    total_timeout: float | None = None
    repeat: int | None = None
    budget: float = 60.0
    claims: tuple[str, ...] = ()

    def checked(self, who: str = "check") -> "How":
        """The same.

        Raises:
            ValueError: a field has a value that is not allowed.
        """
        for name, known in (("dtype", DTYPES), ("profile", PROFILES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                near = did_you_mean(getattr(self, name), known)
                raise ValueError(f"{who}: {name} got {getattr(self, name)!r}, expected one of {', '.join(known)}{near}")
        if not self.budget >= 0:
            raise ValueError(f"{who}: budget got {self.budget}, expected seconds, 0 or more")
        for axis, size in self.sizes.items():
            if axis not in SIZES or not isinstance(size, int) or size < 0:
                raise ValueError(f"{who}: sizes got {axis}={size}, expected sizes of {', '.join(SIZES)}")
        kinds.checked("require", self.require, kinds.KINDS, who)
        kinds.checked("claims", self.claims, kinds.CLAIMS, who)
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"{who}: seed got {self.seed!r}, expected 0 or more")
        for name, least in (("timeout", 0), ("total_timeout", 0), ("repeat", 1)):
            got = getattr(self, name)
            if got is not None and not (isinstance(got, (int, float)) and got >= least and got != 0):
                raise ValueError(f"{who}: {name} got {got!r}, expected {'1 or more' if least else 'more than 0'}")
        return self

    @property
    def strict(self) -> bool:
        """Whether the law's precision is asked: twice the error of the dense formula (L8), dtypes, the same bits."""
        return self.profile == LAW
