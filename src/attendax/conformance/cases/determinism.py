"""Determinism: the same call again, other batches and heads, and the arrays of the caller (L15)."""

from .case import Case
from .leaks import BIASED, PADDED

CASES = [
    Case(
        "repeated",
        "L15",
        "the same bits again",
        "same_bits",
        call="is_causal=True",
        sizes={"T": 131, "S": 131},
        needs=("determinism",),
    ),
    Case(
        "repeated: gradient",
        "L15",
        "the same bits again",
        "same_bits",
        "gradient",
        call="is_causal=True",
        sizes={"T": 131, "S": 131},
        needs=("determinism",),
    ),
    Case(
        "batches apart",
        "L15",
        "what else is in the batch does not matter, beyond rounding",
        "close",
        least="robust",
        where=dict(out="0"),
        changed="query, key, value = "
        "(np.concatenate([x[:1], np.full_like(x[1:], np.nan)]) for x in (query, key, value))",
    ),
    Case(
        "heads apart",
        "L15",
        "nor what is in the other heads",
        "close",
        least="robust",
        where=dict(out=":, 0"),
        changed="query, key, value = (np.concatenate([x[:, :1], 1e6 * x[:, 1:]], 1) for x in (query, key, value))",
        dtype="float32",
    ),
    Case(
        "a result is held",
        "L15",
        "later calls do not change it",
        "held",
        "held",
    ),
    Case(
        "a result is held, wide heads",
        "L15",
        "later calls do not change it",
        "held",
        "held",
        sizes={"T": 131, "S": 131, "D": 64, "V": 64},
    ),
    Case(
        "a gradient is held",
        "L15",
        "later calls do not change it",
        "held",
        "gradient held",
    ),
    Case(
        "inputs are not written to",
        "L15",
        "the arrays of the caller keep their numbers",
        "unwritten",
        lines="query = query * 5",
    ),
    Case(
        "inputs are not written to, masked",
        "L15",
        "the arrays of the caller keep their numbers",
        "unwritten",
        lines=f"{PADDED}\n{BIASED}",
        call="mask=mask, bias=bias",
    ),
    Case(
        "inputs are not written to, a full mask",
        "L15",
        "it is not narrowed to what the causal mask leaves of it",
        "unwritten",
        lines="mask = np.ones((B, N, T, S), bool)",
        call="mask=mask, is_causal=True",
    ),
]
