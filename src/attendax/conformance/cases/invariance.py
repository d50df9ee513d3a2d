"""Row invariance, for who claims it: the bits of a row are those of another call in which it sees the same keys."""

from typing import Any

from .caches import offset
from .case import FORWARD, GRADIENT, Case
from .given import CAUSAL, NOTHING, Given, case, lengths, mask

CLAIM = "row-invariance"
LAST = "last rows"  # of each array that is compared, as many as both calls have; else the first
SIZES: dict[int, dict[str, Any]] = {
    150: {"B": 4, "N": 2, "G": 2, "T": 150, "S": 150, "D": 64, "V": 64},
    1030: {"B": 2, "N": 1, "G": 1, "T": 1030, "S": 1030, "D": 64, "V": 64},
}
ALL = ("query", "key", "value")
LENGTHS, TO_THE_END, FREE = "T != S", "causal to the end", ("not causal",)  # traits of calls with a part of the tokens


def question(
    name: str,
    about: str,
    other: str,
    changes: tuple[str, ...],
    stay: tuple[str, ...],
    where: str = "...",
    more: str = "",
    needs: tuple[str, ...] = (),
    given: Given = NOTHING,
) -> list[Case]:
    """Cases of two calls.

    Args:
        name: of the cases, with a length.
        about: what is other in the other call.
        other: Python that makes its array of ``{0}``.
        changes: the arrays that are others; with the query its cotangent.
        stay: the arrays whose gradients have the same bits.
        where: the part of the result and of the gradients that has the same bits.
        more: Python that changes an option.
        needs: traits.
        given: beside query, key and value.
    """

    def of(length: int, direction: str) -> Case:
        backward = direction == GRADIENT
        names = changes + ("cotangent",) * (backward and "query" in changes)
        changed = "\n".join([*(f"{x} = {other.format(x)}" for x in names), *filter(None, [more])])
        leaves = [f"grad {x}" for x in stay] if backward else ["out"]
        return case(
            f"{'gradient: ' * backward}row invariance: {name}, {length}", "L15", f"the bits of a row stay {about}",
            given, direction, judge="same_rows", changed=changed, where=dict.fromkeys(leaves, where),
            needs=("determinism", *needs), claim=CLAIM, least="numbers", **SIZES[length],
        )  # fmt: skip

    return [of(150, FORWARD), of(1030, FORWARD), of(150, GRADIENT)]


def part(name: str, about: str, number: str) -> list[Case]:
    """Calls with the last of the queries, which see what they see in a call with all of them."""
    last, about = f"{{0}}[..., -{number} :, :]", f"in a call with {about}"
    ways: dict[str, tuple[str, tuple[str, ...], Given]] = {
        "": ("", FREE, NOTHING),
        ", mask": (f"mask = mask[..., -{number} :, :]", FREE, mask("np.tri(T, S, dtype=bool)[None, None]")),
        ", offset": (f"offset = offset + (T - {number})", (), offset('np.zeros(B, "int32")')),
        f", {TO_THE_END}": ("", (TO_THE_END,), CAUSAL),
    }
    return [
        one
        for way, (more, needs, given) in ways.items()
        for one in question(name + way, about, last, ("query",), ("query",), LAST, more, (LENGTHS, *needs), given)
    ]


BEHIND = "where there are more keys behind those that it sees"
CASES = [
    *question("batch", "in a batch of one", "{0}[:1]", ALL, ALL, ":1"),
    *question("other batches", "beside other batches", "np.concatenate([{0}[:1], {0}[:0:-1]])", ALL, ALL, ":1"),
    *question(
        "other queries", "beside other queries",
        "np.concatenate([{0}[..., :1, :], {0}[..., :0:-1, :]], axis=-2)", ("query",), ("query",), "..., :1, :",
    ),
    *question(
        "more tokens, causal", "where more tokens follow", "{0}[..., : T // 2, :]", ALL, ("query",),
        given=CAUSAL,
    ),
    *question(
        "more keys, key lengths", BEHIND, "{0}[..., : T // 2, :]", ALL[1:], ALL, needs=(LENGTHS, *FREE),
        given=lengths("[T // 2] * B"),
    ),
    *question(
        "more keys, mask", BEHIND, "{0}[..., : T // 2, :]", ALL[1:], ALL, more="mask = mask[..., : T // 2]",
        needs=(LENGTHS, *FREE), given=mask("np.arange(S)[None, None, None] < T // 2"),
    ),
    *part("chunk", "a part of the queries", "(T // 2)"),
    *part("single token", "one query", "1"),
]  # fmt: skip
