"""Two calls that differ only in numbers that are masked give the same bits (L6), and the same call does again (L15)."""

from typing import Any

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, Case
from .given import CAUSAL, LSE, Given, bias, case, lengths, mask, random_bias, segments, words

PADDED, ENDS = mask("np.broadcast_to(np.arange(S) < 5, (B, 1, 1, S)).copy()"), lengths("[5, 5]")
BIASED, FORBIDDEN = random_bias("(B, N, T, S)"), bias("np.zeros((B, 1, 1, S), dtype); bias[..., 5:] = -np.inf")
NO_KEYS = mask("np.ones((T, S), bool); mask[1] = False")
IDS = segments("[[0, 0, 0, 1, 1, 1, 1]] * 2")
MASKED, FUTURE, BEYOND = ":, :, 5:", ":, :, 3:", "..., 5:"
SEEING: dict[str, Any] = {"at": FUTURE, "rows": ":3"}  # queries that do not see keys from the fourth on
OF_LSE: dict[str, Any] = {"where": {"lse": "..."}}
F32: dict[str, Any] = {"dtype": "float32"}
SIZES: dict[int, dict[str, Any]] = {  # by the numbers of an array, where compilers go other ways
    12288: {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16},
    98304: {"B": 1, "N": 12, "G": 12, "T": 128, "S": 128, "D": 64, "V": 64},
}


def leak(
    name: str, given: Given, array: str, way: str = FORWARD, at: str = MASKED, what: str = "np.nan", rows: str = "",
    **more: Any,
) -> Case:  # fmt: skip
    """Two calls; in the second an array has other numbers where nothing, or no row of some, may depend on them."""
    backward = way == GRADIENT
    more |= {"where": {"grad query" if backward else "out": f"..., {rows}, :"}} if rows else {}
    changed = f"{array} = {array}.copy(); {array}[{at}] = {what}"
    name, about = f"leak: {'gradient: ' * backward}{name}", "no bit of any other result changes"
    return case(name, "L6", about, given, way, judge="same_bits", changed=changed, **more)


LEAKS: dict[str, tuple[Given, str, dict[str, Any]]] = {
    "NaN in a masked value": (PADDED, "value", {}),
    "NaN in a masked key": (PADDED, "key", {}),
    "Inf in a masked value": (PADDED, "value", {"what": "np.inf"}),
    "Inf in a masked key": (PADDED, "key", {"what": "-np.inf"}),
    "a huge masked key": (PADDED, "key", {"what": "1e30"} | F32),
    "a huge masked value": (PADDED, "value", {"what": "3e38"} | F32),
    "NaN in a padded value": (ENDS, "value", {}),
    "NaN in a padded key": (ENDS, "key", {}),
    "NaN in a future key": (CAUSAL, "key", SEEING | {"T": 7}),  # T = S: begins at the start, ends at the end
    "NaN in a future value": (CAUSAL, "value", SEEING | {"T": 7}),
    "NaN outside the window": (words("window=(None, 0)"), "value", SEEING),
    "NaN in another segment": (IDS, "value", SEEING | {"T": 7}),
    "NaN in a masked bias": (PADDED & BIASED, "bias", {"at": BEYOND}),
    "Inf in a masked bias": (PADDED & BIASED, "bias", {"at": BEYOND, "what": "np.inf"}),
    "NaN under a bias of -inf": (FORBIDDEN, "value", {}),
    "a query without keys": (NO_KEYS, "query", {"at": ":, :, 1"}),
    "NaN in a masked value, lse": (PADDED & LSE, "value", OF_LSE),
    "NaN in a masked key, lse": (PADDED & LSE, "key", OF_LSE),
    "NaN in a masked key, softcap": (PADDED & words("softcap=2.0"), "key", {}),
}
OF_GRADIENTS = (
    "NaN in a masked value", "NaN in a masked key", "Inf in a masked value", "a huge masked key",
    "NaN in a masked key, softcap", "NaN under a bias of -inf", "NaN in a padded value", "NaN in a future value",
    "NaN in another segment", "NaN in a masked bias", "a query without keys",
)  # fmt: skip
LATER, CALLERS = "later calls do not change it", "the arrays of the caller keep their numbers"
SQUARE: dict[str, Any] = {"T": 131, "S": 131}
AGAIN: dict[str, Any] = {"judge": "same_bits", "needs": ("determinism",)} | SQUARE
NOT_NARROWED = "it is not narrowed to what the causal mask leaves of it"
OTHERS_NAN = "query, key, value = (np.concatenate([x[:1], np.full_like(x[1:], np.nan)]) for x in (query, key, value))"
OTHERS_HUGE = "query, key, value = (np.concatenate([x[:, :1], 1e6 * x[:, 1:]], 1) for x in (query, key, value))"
APART: dict[str, Any] = {"judge": "close", "least": "robust"}
CASES = [
    *(leak(name, given, x, **more) for name, (given, x, more) in LEAKS.items() if "softcap" not in name),
    *(leak(name, given, x, GRADIENT, **more) for name in OF_GRADIENTS for given, x, more in [LEAKS[name]]),
    *(leak(f"NaN in a masked {name}, {n} numbers", mask("np.arange(S)[None] < S - 4"), name, way, "..., -1, :", **sizes)
      for way in (FORWARD, GRADIENT) for n, sizes in SIZES.items() for name in ("value", "key")),
    case("repeated", "L15", "the same bits again", CAUSAL, **AGAIN),
    case("repeated: gradient", "L15", "the same bits again", CAUSAL, GRADIENT, **AGAIN),
    case("batches apart", "L15", "what else is in the batch does not matter, beyond rounding", where={"out": "0"},
        changed=OTHERS_NAN, **APART),
    case("heads apart", "L15", "nor what is in the other heads", where={"out": ":, 0"}, changed=OTHERS_HUGE,
        **APART, **F32),
    case("a result is held", "L15", LATER, direction=HELD, judge="held"),
    case("a result is held, wide heads", "L15", LATER, direction=HELD, judge="held", D=64, V=64, **SQUARE),
    case("a gradient is held", "L15", LATER, direction=GRADIENT_HELD, judge="held"),
    case("inputs are not written to", "L15", CALLERS, Given("query = query * 5"), judge="unwritten"),
    case("inputs are not written to, masked", "L15", CALLERS, PADDED & BIASED, judge="unwritten"),
    case("inputs are not written to, a full mask", "L15", NOT_NARROWED,
        mask("np.ones((B, N, T, S), bool)") & CAUSAL, judge="unwritten"),
]  # fmt: skip
