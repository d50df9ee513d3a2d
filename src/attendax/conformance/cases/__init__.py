"""Every case, from the plain to the special."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping

from attendax.legible import did_you_mean

from . import calls, forward, gradients, invariance, kinds, lengths
from .case import GRADIENT, LEVELS, PROFILES, SIZES, Case, Inputs, Leaves
from .pool import EXAMPLES
from .pool import named as of_ladder

CASES: tuple[Case, ...] = (
    *forward.CASES, *gradients.CASES, *invariance.CASES, *calls.DROPOUT, *lengths.IN_BLOCKS,
    *gradients.OF_SINKS, *calls.CONTEXTS, *lengths.IN_CACHES,
)  # fmt: skip
CLAIMS = {invariance.CLAIM: tuple(invariance.OF_ROWS)}  # what is asked of who claims it, beside all others
__all__ = [
    "CASES", "CLAIMS", "LEVELS", "PROFILES", "Case", "Inputs", "Leaves", "at_sizes", "can_be_made", "choose",
    "distinct", "named", "profiles",
]  # fmt: skip
BY_NAME = {case.name: case for case in (*CASES, *itertools.chain(*CLAIMS.values()))}
BACKWARD = "backward"  # the level of gradients alone


def named(name: str) -> Case | None:
    """The case of a name, in ``CASES`` or drawn in some run."""
    return BY_NAME.get(name) or of_ladder(name)


def choose(
    only: Iterable[str] | None = (), level: str = "everything", profile: str = PROFILES[-1],
    drawn: Iterable[Case] = EXAMPLES, claims: Iterable[str] = (),
) -> list[Case]:  # fmt: skip
    """The cases of a level and a profile that a law, a part of a name, or a keyword that is in no name picks.

    A case that is named in full is asked whatever the profile, drawn or not. Those that are ``drawn`` for a run are
    among them where all are asked for, or they are by their law or by the name of the ladder; those of a claim where it
    is made. Raises ValueError if a level, profile or claim does not exist, or a choice picks no case.
    """
    kinds.checked("level", level, (*LEVELS, BACKWARD))
    kinds.checked("profile", profile, PROFILES)
    kinds.checked("claims", claims := tuple(claims), kinds.CLAIMS)
    only = _words(only)
    every = [*CASES, *(case for claim in claims for case in CLAIMS[claim])]
    every += drawn if asks_for_the_ladder(only) else ()
    every += [case for case in map(of_ladder, only) if case]
    of_level = [case for case in every if _of_level(case, level)]
    within = PROFILES[: PROFILES.index(profile) + 1]
    cases = [case for case in of_level if case.profile in within or case.name in only]
    picking = {words: _picking(words) for words in only}
    for words, picks in picking.items():
        if not any(map(picks, cases)):
            least = next((case.profile for case in of_level if picks(case)), None)
            asked = "expected a law such as L6, a part of a name such as cache, or a keyword such as offset"
            near = did_you_mean(words, [name for case in every for name in (case.law, case.name)])
            advice = f"; profile {least} has some" if least else f"; {asked}{near}"
            raise ValueError(f"check: only got {words!r}, which picks no case of level {level}{advice}")
    return [case for case in cases if not only or any(picks(case) for picks in picking.values())]


def asks_for_the_ladder(only: Iterable[str] | None) -> bool:
    """Tell whether cases at sizes as people run them are among those that are asked for."""
    words = _words(only)
    return not words or any(("ladder" in x.lower() and not of_ladder(x)) or x.upper() == "L11" for x in words)


def _words(only: Iterable[str] | None) -> list[str]:
    return [only] if isinstance(only, str) else list(only or ())


@functools.cache  # every verdict of a run says what other profiles add
def profiles(level: str = "everything") -> dict[str, int]:
    """The number of cases of a level that each profile adds to those before it."""
    return {profile: sum(c.profile == profile and _of_level(c, level) for c in CASES) for profile in PROFILES}


def _of_level(case: Case, level: str) -> bool:
    if level == BACKWARD:
        return case.level == GRADIENT
    return LEVELS.index(case.level) <= LEVELS.index(level)


def at_sizes(cases: Iterable[Case], sizes: Mapping[str, int]) -> list[Case]:
    """The cases at sizes, without those that make no sense there or are the same as another; some have to be left."""
    if not sizes:
        return list(cases)
    sized = (case.sized(sizes) for case in cases)
    found = distinct(case for case in sized if case is not None and can_be_made(case))
    if not found:
        told = ", ".join(f"{k}={x}" for k, x in sizes.items())
        raise ValueError(f"check: sizes got {told}, where no case makes sense")
    return found


def distinct(cases: Iterable[Case]) -> list[Case]:
    """The cases without those that ask the same as another, or by the same name."""
    found: dict[str, Case] = {}
    for case in cases:
        sizes = dict(sorted((SIZES | case.sizes).items()))
        found.setdefault(repr(case._replace(name="", about="", law="", sizes=sizes, slack=1.0, least="")), case)
    return list({case.name: case for case in reversed(found.values())}.values())[::-1]


def can_be_made(case: Case) -> bool:
    """Tell whether its lines run at its sizes, tried with one number for each width, and give arrays of these sizes."""
    try:
        small = {axis: min(size, 1) for axis, size in case.sizes.items() if axis in "D"}
        inputs = case._replace(sizes=case.sizes | small).inputs(0, "float32")
    except (ArithmeticError, IndexError, ValueError):
        return False
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    if query.ndim != 4:
        return True
    (B, N, T, _), S = query.shape, key.shape[-2]
    shapes = {"query_segment_ids": (B, T), "key_segment_ids": (B, S), "key_lengths": (B,)}  # lines may give numbers
    given = {name: x.shape for name, x in inputs.options.items() if hasattr(x, "shape")}
    broadcast = (zip(given[name][::-1], (S, T, N, B), strict=False) for name in ("mask", "bias") if name in given)
    fits = all(shape == shapes.get(name, shape) for name, shape in given.items())
    return fits and all(size in (1, full) for sizes in broadcast for size, full in sizes)


def _picking(words: str) -> Callable[[Case], bool]:
    """Tell which cases a law, a part of a name, or a keyword that is in no name picks."""
    part = words.lower()
    if part[:1] == "l" and part[1:].isdigit():
        return lambda case: words.upper() == case.law
    is_keyword = not any(part in case.name.lower() for case in (*CASES, *EXAMPLES))
    return lambda case: part in case.name.lower() or (is_keyword and words in case.options)
