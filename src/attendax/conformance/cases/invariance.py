"""Row invariance, for who claims it: the bits of a row are those of another call in which it sees the same keys."""

from collections.abc import Iterable, Iterator
from typing import Any

from .caches import offset
from .case import FORWARD, GRADIENT, Case
from .given import CAUSAL, NOTHING, Given, bias, case, lengths, mask, words

CLAIM = "row-invariance"
LAST = "last rows"  # of each array that is compared, as many as both calls have; else the first
SIZES: dict[int, dict[str, Any]] = {
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
    "chunk": "a part of the queries goes another way",
    "single token": "a single query goes another way",
    "longer cache": "a single query over a cache with more room goes another way",
    "bias": "a single query with a bias goes another way",
    "softcap": "a single query with a softcap goes another way",
    "sinks": "a single query with sinks goes another way",
    "grouped heads": "a single query of grouped heads goes another way",
    "dropout": "the size of the batch changes what is dropped",
    "without jit": "a call without jit goes another way",
    "vmap": "a call under vmap goes another way",
}


def broken(names: Iterable[str]) -> str:
    """The way in which a function breaks the claim, from the names of its faults: the plainest call first."""
    names = list(names)
    first, *more = [key for key in BROKEN if any(f"row invariance: {key}," in name for name in names)]
    return f"{CLAIM}: {BROKEN[first]}" + (f" (then: {', '.join(more)})" if more else "")


def question(
    name: str, about: str, other: str, changes: tuple[str, ...], stay: tuple[str, ...], where: str = "...",
    more: str = "", needs: tuple[str, ...] = (), given: Given = NOTHING, *, of_lengths: Iterable[int] = SIZES,
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
            f"{'gradient: ' * backward}row invariance: {name}, {length}", "L15", f"the bits of a row stay {about}",
            given, direction, judge="same_rows", changed=changed, where=dict.fromkeys(leaves, where),
            needs=("determinism", *needs), claim=CLAIM, least="numbers", then=then[backward],
            **SIZES[length] | fields,
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
CASES = [
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
