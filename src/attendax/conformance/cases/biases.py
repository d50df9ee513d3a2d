"""Bias in every broadcast shape, and the log-sum-exp (L2, L9)."""

from .case import Case


def bias_of(shape: str, about: str, **more) -> Case:
    """A random bias of a shape."""
    return Case(
        f"bias {shape}",
        "L2",
        about,
        lines=f"bias = rng.standard_normal({shape}).astype(dtype)",
        call="bias=bias",
        **more,
    )


BIASES = [
    bias_of("(B, N, T, S)", "of the full shape"),
    bias_of("(1, N, T, S)", "one for each head"),
    bias_of("(T, S)", "the same for all heads"),
    bias_of("(B, 1, 1, S)", "one for each key"),
    bias_of("(N, 1, S)", "rank 3, aligned at the end"),
    bias_of("(S,)", "rank 1"),
    bias_of("(B, N, T, 1)", "the same for all keys changes nothing"),
    Case(
        "bias with grouped heads",
        "L2",
        "its heads are the query heads",
        sizes={"N": 6},
        call="bias=bias",
        lines="bias = rng.standard_normal((1, N, T, S)).astype(dtype)",
    ),
    Case(
        "bias of -inf",
        "L5",
        "forbids like a mask",
        call="bias=bias",
        lines="bias = np.where(rng.random((B, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1",
    ),
    Case(
        "bias and scale",
        "L2",
        "the scale is not applied to the bias",
        call="bias=bias, scale=0.1",
        lines="bias = rng.standard_normal((1, N, T, S)).astype(dtype)",
    ),
]
LSE = [
    Case("lse", "L9", "natural log-sum-exp of the scaled scores", call="return_lse=True"),
    Case("lse, scale", "L9", "of the scores as softmaxed", call="return_lse=True, scale=2.0"),
    Case(
        "lse, masked",
        "L9",
        "over the allowed keys",
        call="return_lse=True, mask=mask",
        lines="mask = rng.random((B, N, T, S)) < 0.5; mask[..., 2] = True",
    ),
    Case(
        "lse, softcap and bias",
        "L9",
        "after the cap, with the bias",
        call="return_lse=True, softcap=1.0, bias=bias",
        lines="bias = rng.standard_normal((1, N, T, S)).astype(dtype)",
    ),
    Case("lse, causal", "L9", "over the past", call="return_lse=True, is_causal=True"),
    Case("lse, grouped heads", "L9", "one for each query head", sizes={"N": 6}, call="return_lse=True"),
    Case(
        "merge",
        "L9",
        "two parts of the keys, joined by their lse",
        judge="merged",
        lines="cut = 3",
        call="return_lse=True",
    ),
    Case(
        "merge with a mask",
        "L9",
        "some rows are empty in one part",
        least="robust",
        judge="merged",
        call="return_lse=True, mask=mask",
        lines="cut = 4; mask = rng.random((B, N, T, S)) < 0.5; mask[..., 5] = True; mask[..., 1, :4] = False",
    ),
]
CASES = [*BIASES, *LSE]
