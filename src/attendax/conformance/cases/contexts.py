"""The result does not depend on how a call comes to be compiled: losses and constants, numbers read anew (L17).

What a compiler knows, such as the cotangent of ``out.sum()``, it computes with; random arguments never show that.
"""

from .case import Case

SMALL = {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16}
LARGE = {"B": 2, "N": 12, "G": 12, "T": 197, "S": 197, "D": 64, "V": 64}
IN_NUMBERS = ((1, 12, 64, 16), (2, 12, 197, 64))
GARBAGE = 4.0  # is off by far more than any rounding
COTANGENTS = {  # of each loss
    "sum": "cotangent = np.ones_like(query)",
    "mean": "cotangent = np.full_like(query, 1 / query.size)",
    "a row": "cotangent = np.zeros_like(query); cotangent[..., 0, :] = 1",
}
SQUARE_MASK = "mask = np.tri(T, S, dtype=bool)"
SLOPED_BIAS = "bias = (-np.abs(np.arange(T)[:, None] - np.arange(S)) / 16).astype(dtype)"
ODD = SMALL | {"D": 24, "V": 24}  # of the weights
WEIGHTS = "weights = np.eye(D, dtype=dtype)[::-1]"  # exact in every dtype


def loss(how: str, *shape: int) -> Case:
    """The gradient of a loss as one writes it."""
    sizes = dict(zip("BNTD", shape, strict=True))
    sizes |= {"G": sizes["N"], "S": sizes["T"], "V": sizes["D"]}
    about = {"sum": "loss = out.sum()", "mean": "loss = out.mean()", "a row": "loss = out[..., 0, :].sum()"}[how]
    name = f"gradient of a loss: {how}, {', '.join(map(str, shape))}"
    return Case(
        name, "L17", about, direction=f"gradient of a loss, {how}", lines=COTANGENTS[how], sizes=sizes, slack=GARBAGE,
        least="numbers" if shape in IN_NUMBERS else "law",
    )  # fmt: skip


def known(name: str, kind: str, direction: str = "forward", sizes: dict = SMALL, lines: str = "") -> Case:
    """An array is a constant of the compiled function."""
    words = {"as given": "known", "ones": "of ones"}.get(kind, f"of {kind}")
    shown = {"forward": "", "second": "second order: "}.get(direction.partition(",")[0], f"{direction}: ")
    call = f"{name}={name}" if name in ("mask", "bias") else ""
    about = f"{name} is a constant in what is compiled" + (f", {direction}" if direction != "forward" else "")
    return Case(
        f"{shown}{name} {words}, {sizes['T']}", "L17", about, direction=direction, lines=lines, call=call,
        sizes=sizes, constants={name: kind}, slack=GARBAGE, least="law",
    )  # fmt: skip


def changed(name: str, first: str, then: str) -> Case:
    """Numbers are written into an array between two calls."""
    return Case(
        f"{name} changed in place", "L17", "a second call reads it anew", direction="changed in place", slack=GARBAGE,
        lines=f"{name} = {first}\nchanged = dict({name}=({then}).astype({name}.dtype))", call=f"{name}={name}",
    )  # fmt: skip


LOSSES = [
    loss("sum", 1, 12, 64, 16),
    loss("sum", 2, 12, 128, 64),
    loss("sum", 2, 12, 197, 64),
    loss("sum", 8, 12, 128, 32),
    loss("mean", 2, 12, 128, 64),
    loss("a row", 2, 12, 128, 64),
]
FORWARD = [
    known("query", "identity"),
    known("key", "ones"),
    known("value", "positions"),
    known("value", "ones", sizes=LARGE),
    known("mask", "as given", lines=SQUARE_MASK),
    known("bias", "as given", lines=SLOPED_BIAS),
    known("weights", "as given", sizes=ODD, lines=WEIGHTS),
]
GRADIENTS = [
    known("query", "ones", "gradient"),
    known("key", "positions", "gradient"),
    known("value", "identity", "gradient"),
    known("mask", "as given", "gradient", lines=SQUARE_MASK),
    known("bias", "as given", "gradient", lines=SLOPED_BIAS),
    known("weights", "as given", "gradient", sizes=ODD, lines=WEIGHTS),
]
FORWARD_OVER, REVERSE_OVER = "second, forward over reverse", "second, reverse over reverse"
DIRECTIONS = [
    known("query", "ones", "jvp"),
    known("value", "identity", "jvp"),
    known("query", "ones", FORWARD_OVER),
    known("value", "identity", REVERSE_OVER),
]
ANEW = [
    changed("mask", "np.ones((T, S), bool)", "np.arange(S) <= np.arange(T)[:, None]"),
    changed("bias", "np.zeros((1, N, T, S), dtype)", "rng.standard_normal((1, N, T, S))"),
]
CASES = [*LOSSES, *FORWARD, *GRADIENTS, *DIRECTIONS, *ANEW]
