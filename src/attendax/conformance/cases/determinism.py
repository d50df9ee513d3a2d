"""Determinism: the same call again, other batches and heads, and the arrays of the caller (L15)."""

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD
from .given import CAUSAL, Given, case, mask
from .leaks import BIASED, PADDED

LATER, CALLERS = "later calls do not change it", "the arrays of the caller keep their numbers"
CASES = [
    *(
        case(
            name, "L15", "the same bits again", CAUSAL, direction,
            judge="same_bits", needs=("determinism",), T=131, S=131,
        )
        for name, direction in (("repeated", FORWARD), ("repeated: gradient", GRADIENT))
    ),
    case(
        "batches apart", "L15", "what else is in the batch does not matter, beyond rounding",
        judge="close", least="robust", where=dict(out="0"), changed="query, key, value = "
        "(np.concatenate([x[:1], np.full_like(x[1:], np.nan)]) for x in (query, key, value))",
    ),
    case(
        "heads apart", "L15", "nor what is in the other heads",
        judge="close", least="robust", where=dict(out=":, 0"), dtype="float32",
        changed="query, key, value = (np.concatenate([x[:, :1], 1e6 * x[:, 1:]], 1) for x in (query, key, value))",
    ),
    case("a result is held", "L15", LATER, direction=HELD, judge="held"),
    case("a result is held, wide heads", "L15", LATER, direction=HELD, judge="held", T=131, S=131, D=64, V=64),
    case("a gradient is held", "L15", LATER, direction=GRADIENT_HELD, judge="held"),
    case("inputs are not written to", "L15", CALLERS, Given("query = query * 5"), judge="unwritten"),
    case("inputs are not written to, masked", "L15", CALLERS, PADDED & BIASED, judge="unwritten"),
    case(
        "inputs are not written to, a full mask", "L15", "it is not narrowed to what the causal mask leaves of it",
        mask("np.ones((B, N, T, S), bool)") & CAUSAL, judge="unwritten",
    ),
]  # fmt: skip
