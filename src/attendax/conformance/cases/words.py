"""The sizes in the description of a case, rewritten where the case runs at other sizes."""

import re
from collections.abc import Callable, Mapping

Sizes = Mapping[str, int]
HOLDS: dict[str, Callable[[Sizes], bool]] = {  # words of a name, and where they are true
    r"no block divides": lambda x: x["T"] % 16 > 0 or x["S"] % 16 > 0,
    r"longer than a block": lambda x: x["S"] > 128,
    r"long row": lambda x: x["S"] >= 1000,
    r"one query": lambda x: x["T"] == 1,
    r"one key$": lambda x: x["S"] == 1,
    r"one key head": lambda x: x["G"] == 1,
    r"batch of one": lambda x: x["B"] == 1,
    r"one head$": lambda x: x["N"] == 1,
    r"where B = T": lambda x: x["B"] == x["T"],
    r"where B = N": lambda x: x["B"] == x["N"],
    r"\d numbers": lambda x: False,
    r"heads that do not divide": lambda x: x["G"] > 1 and x["N"] % 2 > 0,
    r"heads of the values": lambda x: x["G"] > 1,
    r"batch of 1 beside": lambda x: x["B"] > 1,
    r"another batch": lambda x: x["B"] != 3,
    r"mask \(S, T\)": lambda x: x["S"] != x["T"],
    r"of another length|of too few": lambda x: min(x["T"], x["S"]) > 2,  # one less would be 1, which is broadcast
}


def hold(name: str, sizes: Sizes) -> bool:
    """Tell whether the words of a name are true at sizes."""
    return all(holds(sizes) for words, holds in HOLDS.items() if re.search(words, name))


def reworded(text: str, own: Sizes, sizes: Sizes) -> str:
    """A text with the sizes that are asked in place of a case's own: "T = S = 131", "width 13", ", 300"."""

    def assigned(match: re.Match[str]) -> str:
        axes = re.findall("[BNGTSDV]", match[1])
        if all(sizes[axis] == own[axis] for axis in axes):
            return match[0]
        if len({sizes[axis] for axis in axes}) == 1:
            return f"{match[1]}{sizes[axes[0]]:,}"
        return ", ".join(f"{axis} = {sizes[axis]:,}" for axis in axes)

    def listed(match: re.Match[str]) -> str:
        axes = {1: "T", 4: "BNTD"}.get(match[0].count(","), "")
        if [own[axis] for axis in axes] != [int(x) for x in match[0].split(",")[1:]]:
            return match[0]
        return "".join(f", {sizes[axis]}" for axis in axes)

    text = re.sub(r"\b((?:[BNGTSDV] = )+)\d[\d,]*\b", assigned, text)
    text = re.sub(r"(?:, \d+)+$", listed, text)
    return re.sub(r"\bwidth \d+", f"width {sizes['D']}", text)
