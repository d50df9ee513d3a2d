"""Dropout: which weights are kept, and how they are scaled (L10)."""

from typing import Any

from .case import FORWARD, GRADIENT, Case
from .given import Given, case, words

ONE_HOT = "key = key / 4; value = np.broadcast_to(np.eye(S, dtype=dtype), (B, G, S, S)).copy()\nquestion = "


def rate(of: float) -> Given:
    """Dropout of a rate."""
    return words(f"dropout_rate={of}, dropout_rng=3")


def dropout(name: str, about: str, question: str, direction: str = FORWARD, N: int = 3) -> Case:
    """A question about dropout; the values are one-hot, so that the result is the weights."""
    given: dict[str, Any] = {"needs": ("V != D",), "dtype": "float32", "T": 12, "S": 40, "V": 40, "N": N}
    asked = Given(f"{ONE_HOT}{question!r}") & rate(0.4)
    return case(f"dropout: {name}", "L10", about, asked, direction, judge="dropped", **given)


CASES = [
    case("dropout: rate 0", "L10", "the identity to the bit", rate(0.0), judge="dropped_none"),
    case("dropout: rate 1", "L10", "zeros", rate(1.0), judge="dropped_all", least="robust"),
    dropout("share", "a weight is 0 or p / (1 - rate), as often as the rate says", "share"),
    dropout("independent", "for every batch, head and query", "independent"),
    dropout("position", "the kept set depends on key and position, not on the numbers", "position only"),
    dropout("random key", "another key, another set", "other key"),
    dropout("gradient", "goes through the set that the forward kept", "gradient", GRADIENT),
    dropout("gradient, grouped heads", "each query head has its own set", "gradient", GRADIENT, N=6),
]
