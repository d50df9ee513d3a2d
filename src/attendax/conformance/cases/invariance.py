"""Row invariance, for who claims it: the bits of a row are those of another call in which it sees the same keys."""

from typing import Any

from .case import GRADIENT, Case

CLAIM = "row-invariance"
LAST = "last rows"  # of each array that is compared, as many as both calls have; else the first
SIZES = {
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
    **given: Any,
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
        given: the lines and the keywords of the call.
    """

    def case(length: int, direction: str) -> Case:
        backward = direction == GRADIENT
        names = changes + ("cotangent",) * (backward and "query" in changes)
        changed = "\n".join([*(f"{x} = {other.format(x)}" for x in names), *filter(None, [more])])
        leaves = [f"grad {x}" for x in stay] if backward else ["out"]
        return Case(
            f"{'gradient: ' * backward}row invariance: {name}, {length}", "L15", f"the bits of a row stay {about}",
            "same_rows", direction, sizes=SIZES[length], changed=changed, where=dict.fromkeys(leaves, where),
            needs=("determinism", *needs), claim=CLAIM, least="numbers", **given,
        )  # fmt: skip

    return [case(150, "forward"), case(1030, "forward"), case(150, GRADIENT)]


def part(name: str, about: str, number: str) -> list[Case]:
    """Calls with the last of the queries, which see what they see in a call with all of them."""
    last, about = f"{{0}}[..., -{number} :, :]", f"in a call with {about}"
    masked = {"lines": "mask = np.tri(T, S, dtype=bool)[None, None]", "call": "mask=mask"}
    cached = {"lines": 'offset = np.zeros(B, "int32")', "call": "is_causal=True, offset=offset"}
    ways: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "": ("", FREE, {}),
        ", mask": (f"mask = mask[..., -{number} :, :]", FREE, masked),
        ", offset": (f"offset = offset + (T - {number})", (), cached),
        f", {TO_THE_END}": ("", (TO_THE_END,), {"call": "is_causal=True"}),
    }
    return [
        case
        for way, (more, needs, given) in ways.items()
        for case in question(name + way, about, last, ("query",), ("query",), LAST, more, (LENGTHS, *needs), **given)
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
        call="is_causal=True",
    ),
    *question(
        "more keys, key lengths", BEHIND, "{0}[..., : T // 2, :]", ALL[1:], ALL, needs=(LENGTHS, *FREE),
        lines='key_lengths = np.full(B, T // 2, "int32")', call="key_lengths=key_lengths",
    ),
    *question(
        "more keys, mask", BEHIND, "{0}[..., : T // 2, :]", ALL[1:], ALL, more="mask = mask[..., : T // 2]",
        needs=(LENGTHS, *FREE), lines="mask = np.arange(S)[None, None, None] < T // 2", call="mask=mask",
    ),
    *part("chunk", "a part of the queries", "(T // 2)"),
    *part("single token", "one query", "1"),
]  # fmt: skip
