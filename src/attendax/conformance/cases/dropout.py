"""Dropout: which weights are kept, and how they are scaled (L10)."""

from .case import Case

ONE_HOT = "key = key / 4; value = np.broadcast_to(np.eye(S, dtype=dtype), (B, G, S, S)).copy()\nquestion = "
WIDE = {"T": 12, "S": 40, "V": 40}


def dropout(name: str, about: str, question: str, N: int = 3, **more) -> Case:
    """A question about dropout; the values are one-hot, so that the result is the weights."""
    return Case(
        f"dropout: {name}",
        "L10",
        about,
        "dropped",
        lines=f"{ONE_HOT}{question!r}",
        sizes=WIDE | {"N": N},
        dtype="float32",
        call="dropout_rate=0.4, dropout_rng=3",
        needs=("V != D",),
        **more,
    )


CASES = [
    Case("dropout: rate 0", "L10", "the identity to the bit", "dropped_none", call="dropout_rate=0.0, dropout_rng=3"),
    Case(
        "dropout: rate 1",
        "L10",
        "zeros",
        "dropped_all",
        call="dropout_rate=1.0, dropout_rng=3",
        least="robust",
    ),
    dropout("share", "a weight is 0 or p / (1 - rate), as often as the rate says", "share"),
    dropout("independent", "for every batch, head and query", "independent"),
    dropout("position", "the kept set depends on key and position, not on the numbers", "position only"),
    dropout("random key", "another key, another set", "other key"),
    dropout("gradient", "goes through the set that the forward kept", "gradient", direction="gradient"),
    dropout("gradient, grouped heads", "each query head has its own set", "gradient", N=6, direction="gradient"),
]
