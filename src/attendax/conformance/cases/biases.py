"""Bias in every broadcast shape, and the log-sum-exp (L2, L9)."""

from .case import Case
from .given import CAUSAL, LSE, Given, bias, case, random_bias, random_mask, words

BIAS, FULL_MASK = random_bias("(1, N, T, S)"), random_mask("(B, N, T, S)")


def bias_of(shape: str, about: str) -> Case:
    """A random bias of a shape."""
    return case(f"bias {shape}", "L2", about, random_bias(shape))


BIASES = [
    bias_of("(B, N, T, S)", "of the full shape"),
    bias_of("(1, N, T, S)", "one for each head"),
    bias_of("(T, S)", "the same for all heads"),
    bias_of("(B, 1, 1, S)", "one for each key"),
    bias_of("(N, 1, S)", "rank 3, aligned at the end"),
    bias_of("(S,)", "rank 1"),
    bias_of("(B, N, T, 1)", "the same for all keys changes nothing"),
    case("bias with grouped heads", "L2", "its heads are the query heads", BIAS, N=6),
    case("bias of -inf", "L5", "forbids like a mask",
        bias("np.where(rng.random((B, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1")),
    case("bias and scale", "L2", "the scale is not applied to the bias", BIAS & words("scale=0.1")),
]  # fmt: skip
OF_LSE = [
    case("lse", "L9", "natural log-sum-exp of the scaled scores", LSE),
    case("lse, scale", "L9", "of the scores as softmaxed", LSE & words("scale=2.0")),
    case("lse, masked", "L9", "over the allowed keys", LSE & FULL_MASK),
    case("lse, softcap and bias", "L9", "after the cap, with the bias", LSE & words("softcap=1.0") & BIAS),
    case("lse, causal", "L9", "over the past", LSE & CAUSAL),
    case("lse, grouped heads", "L9", "one for each query head", LSE, N=6),
    case("merge", "L9", "two parts of the keys, joined by their lse", LSE & Given("cut = 3"), judge="merged"),
    case("merge with a mask", "L9", "some rows are empty in one part",
        LSE & random_mask("(B, N, T, S)", 5) & Given("mask[..., 1, :4] = False; cut = 4"), judge="merged",
        least="robust"),
]  # fmt: skip
CASES = [*BIASES, *OF_LSE]
