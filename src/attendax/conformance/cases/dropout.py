"""Dropout: which weights are kept, and how they are scaled (L10)."""

from typing import Any

from .case import FORWARD, GRADIENT, Case
from .given import CAUSAL, NOTHING, Given, case, lengths, random_bias, random_mask, segments, words

ONE_HOT = "key = key / 4; value = np.broadcast_to(np.eye(S, dtype=dtype), (B, G, S, S)).copy()\nquestion = "
SIZES: dict[str, Any] = {"T": 12, "S": 40, "V": 40, "N": 3, "D": 4}
RATE = "dropout_rate={}, dropout_rng=3"


def dropout(
    name: str, about: str, question: str, direction: str = FORWARD, given: Given = NOTHING, **more: Any
) -> Case:
    """A question about dropout, or several; the values are one-hot, so that the result is the weights."""
    plain = {"needs": ("V != D",), "dtype": "float32", "judge": "dropped"} | SIZES
    asked = Given(f"{ONE_HOT}{question!r}") & given & words(RATE.format(0.4))
    return case(f"dropout: {name}", "L10", about, asked, direction, **plain | more)


BESIDE = {  # an option that dropout must not make a function forget
    "causal": CAUSAL,
    "mask": random_mask("(B, N, T, S)"),
    "bias": random_bias("(1, N, T, S)"),
    "key lengths": lengths("[9, 40]"),
    "softcap and scale": words("softcap=1.5, scale=0.8"),
    "window": words("window=(7, 5)"),
    "segments": segments("[[0] * 5 + [1] * 7] * 2", "[[0] * 15 + [1] * 25] * 2"),
}
SINKS = Given("sinks = 3 + rng.standard_normal(N).astype(dtype)", "sinks=sinks")
IN_A_CACHE = Given('offset = np.array([20, 9], "int32")', "is_causal=True, offset=offset")
CASES = [
    case("dropout: rate 0", "L10", "the identity to the bit", words(RATE.format(0.0)), judge="dropped_none"),
    case("dropout: rate 1", "L10", "zeros", words(RATE.format(1.0)), judge="dropped_all", least="robust"),
    dropout("share", "a weight is 0 or p / (1 - rate), as often as the rate says", "share"),
    dropout("independent", "for every batch, head and query", "independent"),
    dropout("position", "the kept set depends on key and position, not on the numbers", "position only"),
    dropout("random key", "another key, another set", "other key"),
    dropout("gradient", "goes through the set that the forward kept", "gradient", GRADIENT),
    dropout("gradient, grouped heads", "each query head has its own set", "gradient", GRADIENT, N=6),
    dropout("wide heads", "D = 128", "share", D=128),
    dropout("many keys", "S = 1,100", "share, independent in blocks", B=1, N=1, G=1, S=1100, V=1100),
    dropout("bfloat16", "in bfloat16", "share, position only", dtype="bfloat16"),
    dropout("sinks", "beside sinks", "position only", given=SINKS),
    dropout("cache", "beside an offset for each batch", "position only", given=IN_A_CACHE),
    *(dropout(x, f"beside {x}", "position only", given=given) for x, given in BESIDE.items()),
    *(dropout(f"gradient, {x}", f"beside {x}", "gradient", GRADIENT, given=given) for x, given in BESIDE.items()),
]
