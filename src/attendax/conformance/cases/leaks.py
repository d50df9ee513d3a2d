"""Two calls that differ only in numbers that are masked give the same bits (L6), and the same call does again (L15)."""

from typing import Any

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, Case
from .given import CAUSAL, LSE, Given, bias, case, lengths, mask, random_bias, segments, words

PADDED = mask("np.broadcast_to(np.arange(S) < 5, (B, 1, 1, S)).copy()")
BIASED, ENDS = random_bias("(B, N, T, S)"), lengths("[5, 5]")
FORBIDDEN = bias("np.zeros((B, 1, 1, S), dtype); bias[..., 5:] = -np.inf")
NO_KEYS = mask("np.ones((T, S), bool); mask[1] = False")
IDS = segments("[[0, 0, 0, 1, 1, 1, 1]] * 2")
MASKED, FUTURE = ":, :, 5:", ":, :, 3:"
OUT, OF_QUERY = {"out": "..., :3, :"}, {"grad query": "..., :3, :"}
MANY: dict[str, Any] = {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16}  # 12,288 numbers each
MORE: dict[str, Any] = {"B": 1, "N": 12, "G": 12, "T": 128, "S": 128, "D": 64, "V": 64}  # 98,304


def leak(
    name: str, given: Given, array: str, at: str = MASKED, what: str = "np.nan", way: str = FORWARD, **more: Any
) -> Case:
    """Two calls; in the second an array has other numbers where nothing may depend on them."""
    name = f"leak: {'gradient: ' * (way == GRADIENT)}{name}"
    changed = f"{array} = {array}.copy(); {array}[{at}] = {what}"
    return case(
        name, "L6", "no bit of any other result changes", given, way, judge="same_bits", changed=changed, **more
    )


BEYOND = [  # where compilers go other ways
    leak(
        f"NaN in a masked {name}, {n} numbers", mask("np.arange(S)[None] < S - 4"), name, "..., -1, :", way=way, **sizes
    )
    for way in (FORWARD, GRADIENT)
    for n, sizes in ((12288, MANY), (98304, MORE))
    for name in ("value", "key")
]
IN_RESULTS = [
    leak("NaN in a masked value", PADDED, "value"),
    leak("NaN in a masked key", PADDED, "key"),
    leak("Inf in a masked value", PADDED, "value", what="np.inf"),
    leak("Inf in a masked key", PADDED, "key", what="-np.inf"),
    leak("a huge masked key", PADDED, "key", what="1e30", dtype="float32"),
    leak("a huge masked value", PADDED, "value", what="3e38", dtype="float32"),
    leak("NaN in a padded value", ENDS, "value"),
    leak("NaN in a padded key", ENDS, "key"),
    leak("NaN in a future key", CAUSAL, "key", FUTURE, where=OUT, T=7),  # T = S: begins at the start, ends at the end
    leak("NaN in a future value", CAUSAL, "value", FUTURE, where=OUT, T=7),
    leak("NaN outside the window", words("window=(None, 0)"), "value", FUTURE, where=OUT),
    leak("NaN in another segment", IDS, "value", FUTURE, where=OUT, T=7),
    leak("NaN in a masked bias", PADDED & BIASED, "bias", "..., 5:"),
    leak("Inf in a masked bias", PADDED & BIASED, "bias", "..., 5:", "np.inf"),
    leak("NaN under a bias of -inf", FORBIDDEN, "value"),
    leak("a query without keys", NO_KEYS, "query", ":, :, 1"),
    leak("NaN in a masked value, lse", PADDED & LSE, "value", where={"lse": "..."}),
    leak("NaN in a masked key, lse", PADDED & LSE, "key", where={"lse": "..."}),
]
IN_GRADIENTS = [
    leak("NaN in a masked value", PADDED, "value", way=GRADIENT),
    leak("NaN in a masked key", PADDED, "key", way=GRADIENT),
    leak("Inf in a masked value", PADDED, "value", what="np.inf", way=GRADIENT),
    leak("a huge masked key", PADDED, "key", what="1e30", way=GRADIENT, dtype="float32"),
    leak("NaN in a masked key, softcap", PADDED & words("softcap=2.0"), "key", way=GRADIENT),
    leak("NaN under a bias of -inf", FORBIDDEN, "value", way=GRADIENT),
    leak("NaN in a padded value", ENDS, "value", way=GRADIENT),
    leak("NaN in a future value", CAUSAL, "value", FUTURE, way=GRADIENT, where=OF_QUERY, T=7),
    leak("NaN in another segment", IDS, "value", FUTURE, way=GRADIENT, where=OF_QUERY, T=7),
    leak("NaN in a masked bias", PADDED & BIASED, "bias", "..., 5:", way=GRADIENT),
    leak("a query without keys", NO_KEYS, "query", ":, :, 1", way=GRADIENT),
]
LATER, CALLERS = "later calls do not change it", "the arrays of the caller keep their numbers"
DETERMINISM = [
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
    case("heads apart", "L15", "nor what is in the other heads", judge="close", least="robust", where=dict(out=":, 0"),
        dtype="float32",
        changed="query, key, value = (np.concatenate([x[:, :1], 1e6 * x[:, 1:]], 1) for x in (query, key, value))"),
    case("a result is held", "L15", LATER, direction=HELD, judge="held"),
    case("a result is held, wide heads", "L15", LATER, direction=HELD, judge="held", T=131, S=131, D=64, V=64),
    case("a gradient is held", "L15", LATER, direction=GRADIENT_HELD, judge="held"),
    case("inputs are not written to", "L15", CALLERS, Given("query = query * 5"), judge="unwritten"),
    case("inputs are not written to, masked", "L15", CALLERS, PADDED & BIASED, judge="unwritten"),
    case("inputs are not written to, a full mask", "L15", "it is not narrowed to what the causal mask leaves of it",
        mask("np.ones((B, N, T, S), bool)") & CAUSAL, judge="unwritten"),
]  # fmt: skip
CASES = [*IN_RESULTS, *IN_GRADIENTS, *BEYOND, *DETERMINISM]
