"""Bits that nothing may change: numbers that are masked (L6), the same call again (L15), other rows.

Row invariance: the bits of a row are those of another call in which it sees the same keys.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, Case
from .given import CAUSAL, LSE, NOTHING, Given, bias, case, lengths, mask, random_bias, segments, words
from .lengths import offset

PADDED, ENDS = mask("np.broadcast_to(np.arange(S) < 5, (B, 1, 1, S)).copy()"), lengths("[5, 5]")
BIASED, FORBIDDEN = random_bias("(B, N, T, S)"), bias("np.zeros((B, 1, 1, S), dtype); bias[..., 5:] = -np.inf")
NO_KEYS = mask("np.ones((T, S), bool); mask[1] = False")
IDS = segments("[[0, 0, 0, 1, 1, 1, 1]] * 2")
MASKED, FUTURE, BEYOND = ":, :, 5:", ":, :, 3:", "..., 5:"
SEEING: dict[str, Any] = {"at": FUTURE, "rows": ":3"}  # queries that do not see keys from the fourth on
OF_LSE: dict[str, Any] = {"where": {"lse": "..."}}
F32: dict[str, Any] = {"dtype": "float32"}
NUMBERS: dict[int, dict[str, Any]] = {  # by the numbers of an array, where compilers go other ways
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
    return case("L6", name, about, given, way, judge="same_bits", changed=changed, **more)


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
      for way in (FORWARD, GRADIENT) for n, sizes in NUMBERS.items() for name in ("value", "key")),
    case("L15", "repeated", "the same bits again", CAUSAL, **AGAIN),
    case("L15", "repeated: gradient", "the same bits again", CAUSAL, GRADIENT, **AGAIN),
    case("L15", "batches apart", "what else is in the batch does not matter, beyond rounding", where={"out": "0"},
        changed=OTHERS_NAN, **APART),
    case("L15", "heads apart", "nor what is in the other heads", where={"out": ":, 0"}, changed=OTHERS_HUGE,
        **APART, **F32),
    case("L15", "a result is held", LATER, direction=HELD, judge="held"),
    case("L15", "a result is held, wide heads", LATER, direction=HELD, judge="held", D=64, V=64, **SQUARE),
    case("L15", "a gradient is held", LATER, direction=GRADIENT_HELD, judge="held"),
    case("L15", "inputs are not written to", CALLERS, Given("query = query * 5"), judge="unwritten"),
    case("L15", "inputs are not written to, masked", CALLERS, PADDED & BIASED, judge="unwritten"),
    case("L15", "inputs are not written to, a full mask", NOT_NARROWED,
        mask("np.ones((B, N, T, S), bool)") & CAUSAL, judge="unwritten"),
]  # fmt: skip
CLAIM = "row-invariance"
LAST = "last rows"  # of each array that is compared, as many as both calls have; else the first
OF_LENGTHS: dict[int, dict[str, Any]] = {
    150: {"B": 4, "N": 2, "G": 2, "T": 150, "S": 150, "D": 64, "V": 64},
    1030: {"B": 2, "N": 2, "G": 2, "T": 1030, "S": 1030, "D": 64, "V": 64},
}
ALL, QUERY = ("query", "key", "value"), ("query",)
LENGTHS, TO_THE_END, FREE = "T != S", "causal to the end", ("T != S", "not causal")  # traits of calls with a part
BROKEN = {  # what is told of who breaks it, by the name of the question: the plainest call first
    "batch": "the size of the batch changes a row",
    "other batches": "other batches change a row",
    "heads": "the number of heads changes a row",
    "other queries": "other queries change a row",
    "more tokens": "tokens that follow change a row",
    "more keys": "keys that a row does not see change it",
    "chunk": "a chunk of the queries is computed differently",
    "single token": "a single query is computed differently",
    "longer cache": "a single query over a cache with more room is computed differently",
    "bias": "a single query with a bias is computed differently",
    "softcap": "a single query with a softcap is computed differently",
    "sinks": "a single query with sinks is computed differently",
    "grouped heads": "a single query with grouped heads is computed differently",
    "dropout": "the size of the batch changes what is dropped",
    "without jit": "a call without jit is computed differently",
    "vmap": "a call under vmap is computed differently",
}


def broken(names: Iterable[str]) -> str:
    """The way in which a function breaks the claim, from the names of its faults: the plainest call first."""
    names = list(names)
    first, *more = [key for key in BROKEN if any(f"row invariance: {key}," in name for name in names)]
    return f"{CLAIM}: {BROKEN[first]}" + (f" (then: {', '.join(more)})" if more else "")


def question(
    name: str, about: str, other: str, changes: tuple[str, ...], stay: tuple[str, ...], where: str = "...",
    more: str = "", needs: tuple[str, ...] = (), given: Given = NOTHING, *, of_lengths: Iterable[int] = OF_LENGTHS,
    then: tuple[str, str] = ("", ""), **fields: Any,
) -> list[Case]:  # fmt: skip
    """Cases of two calls at some lengths; the name begins with a key of ``BROKEN``.

    In the other call the arrays that it ``changes`` are the ``other`` ones, Python of ``{0}``; with the query its
    cotangent is another. ``more`` is Python that changes an option, and ``then`` are the directions of a result and of
    a gradient, where they are others. The result, and the gradients of what has to ``stay``, keep their bits in
    ``where``. The gradient is asked at the first length.
    """
    asked = [(x, FORWARD) for x in of_lengths]
    asked += [(asked[0][0], GRADIENT)] if then[1] or not then[0] else []
    found = []
    for length, direction in asked:
        backward = direction == GRADIENT
        names = changes + ("cotangent",) * (backward and "query" in changes)
        changed = "\n".join([*(f"{x} = {other.format(x)}" for x in names), *filter(None, [more])])
        leaves = [f"grad {x}" for x in stay] if backward else ["out"]
        found.append(case(
            "L15", f"{'gradient: ' * backward}row invariance: {name}, {length}", f"the bits of a row stay {about}",
            given, direction, judge="same_rows", changed=changed, where=dict.fromkeys(leaves, where),
            needs=("determinism", *needs), claim=CLAIM, least="numbers", then=then[backward],
            **OF_LENGTHS[length] | fields,
        ))  # fmt: skip
    return found


def part(name: str, about: str, number: str) -> Iterator[Case]:
    """Calls with the last of the queries, which see what they see in a call with all of them."""
    last, later = f"{{0}}[..., -{number} :, :]", f"offset = offset + (T - {number})"
    ways: dict[str, tuple[str, tuple[str, ...], Given]] = {
        "": ("", FREE, NOTHING),
        ", mask": (f"mask = mask[..., -{number} :, :]", FREE, mask("np.tri(T, S, dtype=bool)[None, None]")),
        ", offset": (later, (LENGTHS,), FROM_0),
        ", window": (later, (LENGTHS,), FROM_0 & words("window=(T // 3, 0)")),
        f", {TO_THE_END}": ("", (LENGTHS, TO_THE_END), CAUSAL),
    }
    for way, (more, needs, given) in ways.items():
        yield from question(name + way, f"in a call with {about}", last, QUERY, QUERY, LAST, more, needs, given)


def single(name: str, more: str = "", given: Given = NOTHING, **fields: Any) -> list[Case]:
    """Calls with the last query alone, with an option."""
    about = f"in a call with one query, {name}"
    return question(name, about, ONE, QUERY, QUERY, LAST, more, FREE, given, of_lengths=(150,), **fields)


FROM_0, ONE, HALF = offset('np.zeros(B, "int32")'), "{0}[..., -1 :, :]", "{0}[..., : T // 2, :]"
OTHER_QUERIES = "np.concatenate([{0}[..., :1, :], {0}[..., :0:-1, :]], axis=-2)"
ROOM = "offset = offset + (T - 1)\nkey, value = (np.concatenate([x, x], axis=-2) for x in (key, value))"
BEHIND = "where there are more keys behind those that it sees"
OF_ROWS = [
    *question("batch", "in a batch of one", "{0}[:1]", ALL, ALL, ":1"),
    *question("other batches", "beside other batches", "np.concatenate([{0}[:1], {0}[:0:-1]])", ALL, ALL, ":1"),
    *question("heads", "of a head alone", "{0}[:, :1]", ALL, ALL, ":, :1"),
    *question("other queries", "beside other queries", OTHER_QUERIES, QUERY, QUERY, "..., :1, :"),
    *question("more tokens, causal", "where more tokens follow", HALF, ALL, QUERY, given=CAUSAL),
    *question("more keys, key lengths", BEHIND, HALF, ALL[1:], ALL, needs=FREE, given=lengths("[T // 2] * B")),
    *question("more keys, mask", BEHIND, HALF, ALL[1:], ALL, more="mask = mask[..., : T // 2]", needs=FREE,
        given=mask("np.arange(S)[None, None, None] < T // 2")),
    *part("chunk", "a part of the queries", "(T // 2)"),
    *part("single token", "one query", "1"),
    *question("longer cache", "over a cache with more room", ONE, QUERY, QUERY, LAST, ROOM, (LENGTHS,), FROM_0),
    *single("bias", "bias = bias[..., -1 :, :]", bias("rng.standard_normal((B, N, T, S)).astype(dtype)")),
    *single("softcap", given=Given("query = 3 * query", "softcap=2.0")),
    *single("sinks", given=Given("sinks = 3 + rng.standard_normal(N).astype(dtype)", "sinks=sinks")),
    *single("grouped heads", N=4),
    *question("dropout", "in a batch of one", "{0}[:1]", ALL, ALL, ":1", given=words("dropout_rate=0.4, dropout_rng=3"),
        of_lengths=(150,)),
    *question("without jit", "without jit", "", (), ALL, then=("eager", ""), frameworks=("jax",)),
    *question("vmap", "under vmap", "{0}[:, None]", ALL, ALL, given=Given("mapped = dict(query=0, key=0, value=0)"),
        then=("vmap", "per example gradient"), frameworks=("jax", "torch")),
]  # fmt: skip
