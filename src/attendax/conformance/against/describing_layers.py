"""What is found out about layers: by which conventions they compute, and where two differ."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attendax.exits import Refusal

from ..worker.errors import Failed
from .asking import TOLERANCE, Probe, distance
from .comparing import Difference
from .examples import Equality
from .layers import (
    ACTIVATIONS,
    EPS,
    GATES,
    KERNELS,
    LAW,
    NORMS,
    PACKINGS,
    PLACE,
    POSITIONS,
    ROTARY,
    SCALES,
    SEARCH,
    SIZES,
    SPLITS,
    Sizes,
    drawn,
    layer,
    shapes,
)  # fmt: skip
from .remote import Function
from .ways import HEADS

WORDS = {
    "place": "place of the norms and residuals", "norm": "norm", "eps": "eps of the norms", "activation": "activation",
    "gated": "what the activation is of", "packing": "columns of qkv_kernel", "split": "heads of a projection",
    "kernels": "kernels", "rotary": "rotary", "positions": "positions", "causal": "causal", "scale": "scale",
    "residual": "residual",
}  # fmt: skip
SAID = {"rotary": {"": "none", "halves": "turns the halves of a head against each other",
                   "neighbours": "turns neighbours against each other"}}  # fmt: skip
CASES = 12
SMALL = 1e-2, 1e-4, 1e-6  # sizes of x at which an eps shows, if nothing is added
BIASES = {k for k in shapes() if k.endswith("_bias") and "norm" not in k} | {"positions"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer as it is known.

    Attributes:
        reads: the weights that change its result.
        how: of each convention its own.
        heads: how many.
        keyword: by which it takes that number.
        known: whether the reference gives what it gives.
    """

    fn: Function
    reads: frozenset[str]
    how: Mapping[str, Any]
    heads: int
    keyword: str
    known: bool

    def call(self, params: Mapping[str, np.ndarray], x: np.ndarray, sizes: Sizes = SEARCH) -> np.ndarray:
        """Its result, from kernels (in, out).

        Raises:
            Failed: it raises.
        """
        return self.fn(given_to(self, params), x, **self.keywords(sizes))[0]

    def keywords(self, sizes: Sizes = SEARCH) -> dict[str, int]:
        """What it is always given."""
        return {self.keyword: self.heads * sizes.more} if self.keyword else {}


def given_to(made: Layer, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights as a layer takes them, from kernels (in, out)."""
    return transposed(params) if made.how["kernels"] == KERNELS[1] else dict(params)


def transposed(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same weights with kernels (out, in)."""
    return {k: np.ascontiguousarray(x.T) if k.endswith("_kernel") else x for k, x in params.items()}


def inputs(seed: int, size: float = 1.0, sizes: Sizes = SEARCH) -> np.ndarray:
    """x (B, T, M)."""
    return (np.random.default_rng((seed, 9)).standard_normal(sizes[:3]) * size).astype(np.float32)


def describe(fn: Function, heads: int, letter: str) -> Layer:
    """Try every convention that is known.

    Raises:
        Refusal: it raises, with kernels of either kind.
    """
    keyword = next((name for name in fn.names if name in HEADS), "")
    said = ""
    best = None
    for kernels in KERNELS:
        made = Layer(fn, frozenset(), LAW | {"kernels": kernels}, heads, keyword, False)
        try:
            reads = _reads(made)
        except Failed as failed:
            said = said or failed.said
            continue
        found = _settled(dataclasses.replace(made, reads=reads))
        if best is None or found[1] < best[1]:
            best = found
        if found[0].known:
            break
    if best is None:
        names = ", ".join(drawn(0))
        raise Refusal(
            f"{letter}, {fn.path}, raises: {said}; it is called with params, a dict of {names}, and x {SEARCH[:3]}"
        )
    return best[0]


def _reads(made: Layer) -> frozenset[str]:
    params, x = {k: v * np.float32(0.5) for k, v in drawn(1).items()}, inputs(1)  # no softmax has one weight alone
    plain = made.call(params, x)
    if plain.shape != x.shape:
        raise Failed(f"it gives an array {plain.shape}, expected {x.shape}")
    moved = {k: made.call(params | {k: v + np.float32(0.5) * np.roll(v, 1, -1)}, x) for k, v in params.items()}
    return frozenset(k for k, y in moved.items() if distance((y,), (plain,)) > TOLERANCE)


def _settled(made: Layer) -> tuple[Layer, float]:
    """Part by part: each alone first, the rest of the weights 0."""
    reads = made.reads
    how = dict(made.how)
    attention = {k for k in reads if k.split("_")[0] in ("query", "key", "value", "qkv", "out")}
    mlp = {k for k in reads if k.split("_")[0] in ("up", "down", "gate")}
    norms = {k for k in reads if k.startswith("norm")}
    starts = tuple(x for x in POSITIONS if "positions" in reads or "table" not in x)
    whole: dict[str, Any] = {"residual": ("yes", "no"), "positions": starts}
    whole |= {"norm": tuple(NORMS)} if norms else {}
    whole |= {"place": PLACE} if norms or (mlp and attention) else {}
    within = {"activation": ACTIVATIONS} | ({"gated": GATES} if "gate_kernel" in reads else {})
    heads = {"rotary": ROTARY, "causal": ("no", "yes"), "scale": tuple(SCALES)}
    heads |= {"packing": tuple(PACKINGS)} if "qkv_kernel" in reads else {"split": tuple(SPLITS)}
    if mlp:
        how |= _best(made, how, attention, whole | within)
    if attention:
        how |= _best(made, how, mlp, heads if mlp else whole | heads)
    if norms:  # without biases a small x stays small up to the first norm, and eps shows
        how |= _best(made, how, BIASES, {"eps": EPS, "place": PLACE}, SMALL)
    if "place" in whole:  # with all weights; and GELU by tanh from that by erf, which a wrong eps hides
        rest = {"place": PLACE} | ({"activation": ACTIVATIONS} if mlp else {})
        how |= _best(made, how, set(), rest, (1.0, 0.01, 1e-4))
    found = dataclasses.replace(made, how=how)
    far = _apart(found, (1.0, *SMALL))
    return dataclasses.replace(found, known=far < TOLERANCE), far


def _best(
    made: Layer, how: Mapping[str, Any], off: set[str], choices: Mapping[str, Any], sizes: Any = (1.0,)
) -> dict[str, Any]:
    """The choices under which the reference is nearest, where some of the weights are 0."""
    probes = [(_without(drawn(k + 2), off), inputs(k, size)) for k, size in enumerate(sizes)]
    right = [made.call(params, x) for params, x in probes]
    found: tuple[float, dict[str, Any]] = np.inf, {}
    for values in itertools.product(*choices.values()):
        tried = dict(zip(choices, values, strict=True))
        pairs = zip(probes, right, strict=True)
        far = max(_far(y, _reference(made, {**how, **tried}, params, x)) for (params, x), y in pairs)
        found = min(found, (far, tried), key=lambda x: x[0])
    return found[1]


def _reference(made: Layer, how: Mapping[str, Any], params: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """What the layer would give, if those were its conventions; kernels are (in, out) here."""
    read = made.reads | {"positions"}  # which it reads where a convention has it
    return layer({k: v for k, v in params.items() if k in read}, x, {**how, "kernels": KERNELS[0]}, made.heads)


def _apart(made: Layer, sizes: tuple[float, ...]) -> float:
    """How far the layer is from the reference of its conventions."""
    found = 0.0
    for k, size in enumerate(sizes):
        params, x = _case(k + 5, size)
        found = max(found, _far(made.call(params, x), _reference(made, made.how, params, x)))
    return found


def _far(found: np.ndarray, right: np.ndarray) -> float:
    """How far apart, as a share of the largest number, however small that is."""
    size = np.abs(right).max() or 1.0
    return distance((found / size,), (right / size,))


def _case(seed: int, size: float, sizes: Sizes = SEARCH) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights and x; to the smallest x no bias is added, beside which it would not count."""
    params = drawn(seed, sizes)
    return _without(params, BIASES) if size < SMALL[0] else params, inputs(seed, size, sizes)


def _without(params: dict[str, np.ndarray], off: set[str]) -> dict[str, np.ndarray]:
    return {k: np.zeros_like(x) if k in off else x for k, x in params.items()}


def differences(a: Layer, b: Layer) -> Iterator[Difference]:
    """Each convention by which two layers differ, with the smallest input that shows it."""
    for name, words in WORDS.items():
        one, other = a.how[name], b.how[name]
        if one == other or not all(_has(name, x) for x in (a, b)):
            continue
        said = SAID.get(name, {})
        if shown := _shown(a, b, name):  # without it no input tells the two apart
            yield Difference(words, str(said.get(one, one)) or "none", str(said.get(other, other)) or "none", shown)
    alone = [sorted(x.reads - y.reads) for x, y in ((a, b), (b, a))]
    if any(alone):
        yield Difference("weights", *(f"alone reads {', '.join(x)}" if x else "reads no others" for x in alone))


def _has(name: str, x: Layer) -> bool:
    """Whether the layer has what a convention is of."""
    needs = {
        "norm": "norm",
        "eps": "norm",
        "activation": "up",
        "gated": "gate",
        "packing": "qkv",
        "split": "query",
    }
    return name not in needs or any(k.startswith(needs[name]) for k in x.reads)


def _shown(a: Layer, b: Layer, name: str) -> str:
    """The shortest text that shows a convention alone: A's layer, and the same with B's convention."""
    params = drawn(4)
    tries = [(params, 1e-2 if name == "eps" else 1.0, "drawn")]
    if name == "eps":
        tries += [(_without(params, BIASES), x, f"drawn, of about {x:g}, with biases of 0") for x in SMALL]
    for (given, size, drawing), length in itertools.product(tries, range(1, SEARCH.T + 1)):
        x = inputs(4, size)[:1, :length]
        one, other = (_reference(a, {**a.how, name: y.how[name]}, given, x) for y in (a, b))
        if name == "kernels":
            try:
                other = b.fn(given_to(a, given), x, **b.keywords())[0]
            except Failed as failed:
                return f"given A's, B raises {failed.said}"
        if _far(other, one) > TOLERANCE:
            at = np.unravel_index(int(np.argmax(np.abs(one - other))), one.shape)
            said = f"a text of {length} token{'s' * (length > 1)}, {drawing}: A gives {one[at]:.6g}"
            return f"{said}, with what B has in its place {other[at]:.6g}"
    return ""


def equality(a: Layer, other: Callable[..., tuple[np.ndarray, ...]], cases: int = CASES) -> Equality:
    """How far another function is from A's layer, called as that is, at sizes in turn; what A refuses is no case."""
    count, apart, worst = 0, 0.0, None
    for k in range(cases):
        sizes = SIZES[k % len(SIZES)]
        params, x = _case(20 + k, (1.0, *SMALL)[k % 4], sizes)
        try:
            right = a.call(params, x, sizes)
        except Failed:
            continue
        said = f"x {sizes[:3]}, F={sizes.F}" + f", {a.heads * sizes.more} heads" * bool(a.keyword)
        try:
            far = _far(other(given_to(a, params), x, **a.keywords(sizes))[0], right)
            said += f" (by {far:.2g} of the largest number)"
        except Failed as failed:
            far, said = np.inf, f"{said} ({failed.said})"
        count, apart = count + 1, max(apart, far)
        worst = Probe((x,), {}, said) if far > TOLERANCE and worst is None else worst
    return Equality(count, apart, worst)
