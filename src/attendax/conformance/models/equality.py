"""Two computations that have to give the same, position by position."""

from collections.abc import Sequence

import numpy as np

from ..judge.verdicts import Finding, Verdict
from .request import Request
from .trial import FINE, Evidence, Found, Trial, distance

SLACK = 32.0  # float64 beside float32 is off by all the rounding there is, not by what differs between two orders
Places = Sequence[tuple[tuple[int, int], tuple[int, int]]]  # (row, position) of the one, and of the other


def same(trial: Trial, one: Request, other: Request, places: Places, said: str, usual: str, slack: float = 1) -> Found:
    """Whether two requests give the same at the places; ``said`` names the first that does not.

    Args:
        trial: of the model.
        one: what is expected.
        other: what has to equal it.
        places: pairs of row and position in each.
        said: what is wrong then, in words.
        usual: what usually causes it.
        slack: times the rounding that is allowed.
    """
    expected = trial.ask(one)[tuple(np.array([at for at, _ in places]).T)]
    if np.isnan(expected).any():
        return not_a_number(one, places[int(np.isnan(expected).any(-1).argmax())][0])
    found = equal(trial, expected, other, [beside for _, beside in places], said, usual, slack)
    if found.evidence is None:
        return found
    at = next(at for at, beside in places if beside == found.evidence.beside)
    return found._replace(evidence=found.evidence._replace(one=one, at=at))


def equal(
    trial: Trial,
    expected: np.ndarray,
    request: Request,
    places: Sequence[tuple[int, int]],
    said: str,
    usual: str,
    slack: float = 1,
) -> Found:
    """Whether a request gives the results ``expected`` (places, C) at places (row, position); see ``same``."""
    got = trial.ask(request)[tuple(np.array(places).T)]
    apart, allowed = distance(expected, got), slack * trial.allowed(expected)
    wrong = apart > allowed
    if not wrong.any():
        return measured(apart, allowed)
    first = int(wrong.argmax())
    row, position = places[first]
    verdict = Verdict.NAN if np.isnan(got[first]).any() else Verdict.WRONG
    said = (
        f"{said}: row {row}, position {position} {'is NaN' if verdict is Verdict.NAN else _off(apart, allowed, first)}"
    )
    finding = measure_of(Finding(verdict, said), expected[first], apart[first], allowed[first], (row, position))
    return Found(
        finding, Evidence(expected[first], request, places[first], places[first], float(allowed[first])), usual
    )


def not_a_number(request: Request, at: tuple[int, int]) -> Found:
    """A result that is NaN without a reason."""
    said = f"row {at[0]}, position {at[1]} is NaN"
    return Found(
        Finding(Verdict.NAN, said, "out", at), Evidence(request, request, at, at, 0.0, "finite"), "an empty softmax"
    )


def measure_of(finding: Finding, expected: np.ndarray, apart: float, allowed: float, index: tuple[int, ...]) -> Finding:
    """The finding, with what it stands on, relative to the size of the result."""
    size = float(np.abs(np.nan_to_num(expected)).max(initial=0.0)) or 1.0
    return finding._replace(leaf="out", index=index, error=float(apart / size), allowed=float(allowed / size))


def measured(apart: np.ndarray, allowed: np.ndarray) -> Found:
    """Nothing is wrong; how near it came."""
    if not apart.size:
        return FINE
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(allowed > 0, apart / allowed, np.where(apart > 0, np.inf, 0.0))
    worst = int(share.argmax())
    return Found(Finding(Verdict.OK, error=float(apart.flat[worst]), allowed=float(allowed.flat[worst])))


def _off(apart: np.ndarray, allowed: np.ndarray, first: int) -> str:
    return f"is off by {apart[first]:.2g}, {beside_rounding(apart[first], allowed[first])}"


def beside_rounding(apart: float, allowed: float) -> str:
    """How large a difference is beside what rounding may do."""
    return f"{apart / allowed:.2g} times what rounding may do" if allowed else "where not a bit may differ"
