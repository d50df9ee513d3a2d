"""What is found out about layers: by which conventions they compute, and where two differ."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attendax.exits import Refusal

from ..worker.errors import Failed
from . import layers
from .asking import TOLERANCE, Probe, distance
from .comparing import Difference
from .examples import Equality
from .layers import LAW, SEARCH, Sizes, drawn
from .remote import Function
from .ways import HEADS

WORDS = {
    "place": "place of the norms and residuals", "norm": "norm", "eps": "eps of the norms", "activation": "activation",
    "gated": "what the activation is of", "packing": "columns of qkv_kernel", "split": "heads of a projection",
    "kernels": "kernels", "rotary": "rotary", "part": "how much of a head rotary turns", "frequencies":
    "frequencies of rotary", "base": "base of rotary", "scaling": "scaling of rotary", "positions": "positions",
    "qk_norm": "norm of queries and keys", "qk_order": "norm of queries and keys", "causal": "causal",
    "scale": "scale", "residual": "residual",
}  # fmt: skip
SAID: dict[str, dict[Any, str]] = {
    "rotary": {
        "": "none", "halves": "turns the halves of a head against each other",
        "neighbours": "turns neighbours against each other",
        "halves of the whole": "turns a part, against what is half a head away",
    },
    "part": {1.0: "the whole", 0.5: "half", 0.25: "a quarter"},
}  # fmt: skip
OF_ROTARY = ("rotary", "part", "frequencies", "base", "scaling", "factor", "trained")
TOGETHER = {  # conventions that are one
    "scaling": ("scaling", "factor", "trained"), "rotary": ("rotary", "part"), "frequencies": ("part", "frequencies"),
}  # fmt: skip
SCALED, NEAREST = tuple(2 ** (k / 3) for k in range(1, 17)), 6  # factors, and of how many variants one is solved for
CASES = 12
WIDE = Sizes(1, 5, 256, 12)
SMALL = 1e-2, 1e-4, 1e-6  # sizes of x at which an eps shows, if nothing is added
BIASES = {k for k in layers.shapes() if k.endswith("_bias") and "norm" not in k} | {"positions"}


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

    def count(self, sizes: Sizes) -> int:
        """Of its heads at some sizes: more where it takes their number."""
        return self.heads * (sizes.more if self.keyword else 1)

    def keywords(self, sizes: Sizes = SEARCH) -> dict[str, int]:
        """What it is always given."""
        return {self.keyword: self.count(sizes)} if self.keyword else {}


def given_to(made: Layer, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights as a layer takes them, from kernels (in, out)."""
    return transposed(params) if made.how["kernels"] == layers.KERNELS[1] else dict(params)


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
    for kernels in layers.KERNELS:
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
    params, x = (
        {k: v * np.float32(0.5) for k, v in drawn(1, heads=made.heads).items()},
        inputs(1),
    )  # no softmax has one weight alone
    plain = made.call(params, x)
    if plain.shape != x.shape:
        raise Failed(f"it gives an array {plain.shape}, expected {x.shape}")
    moved = {k: made.call(params | {k: v + np.float32(0.5) * np.roll(v, 1, -1)}, x) for k, v in params.items()}
    return frozenset(k for k, y in moved.items() if distance((y,), (plain,)) > TOLERANCE)


def _settled(made: Layer) -> tuple[Layer, float]:
    """Part by part: each alone first, the rest of the weights 0."""
    reads = made.reads
    how = dict(made.how)
    attention = {k for k in reads if k.split("_")[0] in ("query", "key", "value", "qkv", "out") and "norm" not in k}
    mlp = {k for k in reads if k.split("_")[0] in ("up", "down", "gate")}
    norms = {k for k in reads if k.startswith("norm")}
    starts = tuple(x for x in layers.POSITIONS if "positions" in reads or "table" not in x)
    whole: dict[str, Any] = {"residual": ("yes", "no"), "positions": starts}
    whole |= {"norm": tuple(layers.NORMS)} if norms else {}
    whole |= {"place": layers.PLACE} if norms or (mlp and attention) else {}
    within = {"activation": layers.ACTIVATIONS} | ({"gated": layers.GATES} if "gate_kernel" in reads else {})
    columns = {"packing": tuple(layers.PACKINGS)} if "qkv_kernel" in reads else {"split": tuple(layers.SPLITS)}
    if mlp:
        how |= _best(made, how, attention, _product(whole | within))
    if attention:  # of one token, whose results have no scores
        choices = _product(columns if mlp else whole | columns)
        try:
            how |= _best(made, how, mlp, choices, length=1)
        except Failed:  # it takes no single token
            how |= _best(made, how, mlp, choices)
        how |= {"causal": "no" if _sees_ahead(made) else "yes"}
        how |= _scores_of(made, how, mlp, {} if mlp else {"positions": starts})
    if any("norm" in k for k in reads):  # without biases a small x stays small up to the first norm, and eps shows
        place = {"place": layers.PLACE} if norms else {}
        how |= _best(made, how, BIASES, _product({"eps": layers.EPS} | place), SMALL)
    if "place" in whole:  # with all weights; and GELU by tanh from that by erf, which a wrong eps hides
        rest = {"place": layers.PLACE} | ({"activation": layers.ACTIVATIONS} if mlp else {})
        how |= _best(made, how, set(), _product(rest), (1.0, 0.01, 1e-4))
    found = dataclasses.replace(made, how=how)
    far = _apart(found, (1.0, *SMALL))
    return dataclasses.replace(found, known=far < TOLERANCE), far


def _product(choices: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _sees_ahead(made: Layer) -> bool:
    """Whether another last token changes the first result."""
    params, x = {k: v * np.float32(0.5) for k, v in drawn(1, heads=made.heads).items()}, inputs(1)
    other = x.copy()
    other[:, -1] = -x[:, -1]
    return distance((made.call(params, x)[:, :1],), (made.call(params, other)[:, :1],)) > TOLERANCE


def _scores_of(made: Layer, how: Mapping[str, Any], off: set[str], more: Mapping[str, Any]) -> dict[str, Any]:
    """The conventions of scores: scale, rotary, and the norm of queries and keys."""
    plain: dict[str, Any] = {"scale": tuple(layers.SCALES), **more}
    if any("_norm_" in k for k in made.reads):
        plain |= {"qk_norm": tuple(layers.NORMS), "qk_order": layers.QK_ORDER}
    turned = [{"rotary": x} for x in layers.ROTARY[1:3]]
    turned += _product({"rotary": layers.ROTARY[1:], "part": layers.PARTS[1:], "frequencies": layers.FREQUENCIES})
    variants = [{"rotary": ""}, *turned]
    found = _best(made, how, off, [a | b for a in variants for b in _product(plain)], calm=True)
    if _left(made, {**how, **found}, off) < TOLERANCE:
        return found
    rest = [a | b for a in turned for b in _product(plain)]
    return _with_numbers(made, how, off, rest) or found


def _with_numbers(
    made: Layer, how: Mapping[str, Any], off: set[str], variants: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Rotary of another base, or scaled; the base and the factor are solved for. None where none gives the result."""
    numbers = [
        ({}, "base", np.geomspace(10, 1e8, 29)),
        *(({"scaling": "linear", "base": base}, "factor", np.array(SCALED)) for base in layers.BASES),
    ]
    for fixed, name, grid in numbers:
        ranked = _ranked(
            made, how, off, [x | fixed | {name: float(number)} for x in variants for number in grid], calm=True
        )
        nearest = {str(x | {name: 0}): x for _, x in reversed(ranked)}  # of each variant
        for near in [x for _, x in ranked if nearest[str(x | {name: 0})] is x][:NEAREST]:
            if found := _solved(made, how, off, near, name):
                return _as_ntk(made, how, off, found) if name == "base" else found
    kinds = {"scaling": ("YaRN",), "base": layers.BASES, "factor": layers.FACTORS, "trained": layers.TRAINED}
    of_length = _product(kinds)
    ranked = _ranked(made, how, off, [x | numbers for x in variants for numbers in of_length], calm=True)
    fits = [x for far, x in ranked if far < TOLERANCE]  # which a wide head tells apart
    return min(fits, key=lambda x: _left(made, {**how, **x}, off, WIDE), default=None)


def _solved(
    made: Layer, how: Mapping[str, Any], off: set[str], near: dict[str, Any], name: str
) -> dict[str, Any] | None:
    """With the number at which the result is given, to five digits; None where none near it is."""
    step = 2.0
    while step > 1 + 1e-7:
        tries = [near | {name: near[name] * step**k} for k in (-1, -0.5, 0, 0.5, 1)]
        near, step = _best(made, how, off, tries, calm=True), step**0.6
    for digits in (2, 3, 4, 5):
        rounded = near | {name: float(f"{near[name]:.{digits}g}")}
        if _left(made, {**how, **rounded}, off) < TOLERANCE:
            return rounded
    return None


def _as_ntk(made: Layer, how: Mapping[str, Any], off: set[str], found: dict[str, Any]) -> dict[str, Any]:
    """A base that is another one at another width of heads is that of NTK scaling."""
    sizes = layers.SIZES[-1]
    for base in layers.BASES:
        width = SEARCH.M // made.heads
        width = (
            width if found.get("frequencies") == layers.FREQUENCIES[1] else int(width * found.get("part", 1.0)) // 2 * 2
        )
        if width > 2 and found["base"] > base:
            factor = (found["base"] / base) ** ((width - 2) / width)
            scaled = found | {"base": base, "scaling": "NTK", "factor": float(f"{factor:.3g}")}
            if (
                abs(factor - scaled["factor"]) < 1e-2 * factor
                and _left(made, {**how, **scaled}, off, sizes) < TOLERANCE
            ):
                return scaled if _left(made, {**how, **found}, off, sizes) > TOLERANCE else found
    return found


def _left(made: Layer, how: Mapping[str, Any], off: set[str], sizes: Sizes = SEARCH) -> float:
    """How far the reference of some conventions is from the layer, where some of the weights are 0."""
    params, x = _without(drawn(8, sizes, made.count(sizes)), off, calm=True), inputs(8, 1.0, sizes)
    try:
        return _far(made.call(params, x, sizes), _reference(made, how, params, x, made.count(sizes)))
    except Failed:
        return np.inf


def _best(
    made: Layer, how: Mapping[str, Any], off: set[str], choices: list[dict[str, Any]], sizes: Any = (1.0,), **more: Any
) -> dict[str, Any]:
    """The choice under which the reference is nearest, where some of the weights are 0."""
    return _ranked(made, how, off, choices, sizes, **more)[0][1]


def _ranked(
    made: Layer, how: Mapping[str, Any], off: set[str], choices: list[dict[str, Any]], sizes: Any = (1.0,),
    length: int = SEARCH.T, calm: bool = False,
) -> list[tuple[float, dict[str, Any]]]:  # fmt: skip
    """All of them, with how far the reference is from the layer: the nearest first.

    Where weights are ``calm`` no softmax is of one key alone.
    """
    probes = [
        (_without(drawn(k + 2, heads=made.heads), off, calm), inputs(k, size)[:, :length])
        for k, size in enumerate(sizes)
    ]
    right = [made.call(params, x) for params, x in probes]

    def far(tried: dict[str, Any]) -> float:
        pairs = zip(probes, right, strict=True)
        return max(_far(y, _reference(made, {**how, **tried}, params, x)) for (params, x), y in pairs)

    return sorted(((far(tried), tried) for tried in choices), key=lambda x: x[0])


def _reference(
    made: Layer, how: Mapping[str, Any], params: Mapping[str, np.ndarray], x: np.ndarray, heads: int = 0
) -> np.ndarray:
    """What the layer would give, if those were its conventions; kernels are (in, out) here."""
    read = made.reads | {"positions"}  # which it reads where a convention has it
    given = {k: v for k, v in params.items() if k in read}
    return layers.layer(given, x, {**how, "kernels": layers.KERNELS[0]}, heads or made.heads)


def _apart(made: Layer, sizes: tuple[float, ...]) -> float:
    """How far the layer is from the reference of its conventions."""
    found = 0.0
    for k, size in enumerate(sizes):
        params, x = _case(k + 5, size, made.heads)
        found = max(found, _far(made.call(params, x), _reference(made, made.how, params, x)))
    return found


def _far(found: np.ndarray, right: np.ndarray) -> float:
    """How far apart, as a share of the largest number, however small that is."""
    size = np.abs(right).max() or 1.0
    return distance((found / size,), (right / size,))


def _case(seed: int, size: float, heads: int, sizes: Sizes = SEARCH) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights and x; to the smallest x no bias is added, beside which it would not count."""
    params = drawn(seed, sizes, heads)
    return _without(params, BIASES) if size < SMALL[0] else params, inputs(seed, size, sizes)


def _without(params: dict[str, np.ndarray], off: set[str], calm: bool = False) -> dict[str, np.ndarray]:
    """Weights of which some are 0; calm ones have kernels that keep the size of what they multiply."""
    less = np.float32(8**-0.5)  # of kernels as they are drawn
    calmed = {k: x * less if calm and k.endswith("_kernel") else x for k, x in params.items()}
    return {k: np.zeros_like(x) if k in off else x for k, x in calmed.items()}


def differences(a: Layer, b: Layer) -> Iterator[Difference]:
    """Each convention by which two layers differ, with the smallest input that shows it."""
    for name, words in WORDS.items():
        told = _told(a.how, name), _told(b.how, name)
        if told[0] == told[1] or not all(_has(name, x) for x in (a, b)):
            continue
        if shown := _shown(a, b, name):  # without it no input tells the two apart
            yield Difference(words, *told, shown)
    alone = [sorted(x.reads - y.reads) for x, y in ((a, b), (b, a))]
    if any(alone):
        yield Difference("weights", *(f"alone reads {', '.join(x)}" if x else "reads no others" for x in alone))


def _told(how: Mapping[str, Any], name: str) -> str:
    """The value of a convention, with its numbers."""
    value = how[name]
    if name == "scaling" and value:
        return f"{value} by {how['factor']:g}" + f", trained on {how['trained']}" * (value == "YaRN")
    return SAID.get(name, {}).get(value, f"{value:g}" if isinstance(value, float) else str(value)) or "none"


def _has(name: str, x: Layer) -> bool:
    """Whether the layer has what a convention is of."""
    if name in OF_ROTARY[1:]:
        return bool(x.how["rotary"])
    needs: dict[str, str | tuple[str, ...]] = {
        "norm": "norm", "eps": "norm", "activation": "up", "gated": "gate", "packing": "qkv", "split": "query_kernel",
        **dict.fromkeys(("qk_norm", "qk_order"), ("query_norm", "key_norm", "queries_norm", "keys_norm")),
    }  # fmt: skip
    return name not in needs or any(k.startswith(needs[name]) for k in x.reads)


def _shown(a: Layer, b: Layer, name: str) -> str:
    """The shortest text that shows a convention alone: A's layer, and the same with B's convention."""
    params = drawn(4, heads=a.heads)
    tries = [(params, 1e-2 if name == "eps" else 1.0, "drawn")]
    if name == "eps":
        tries += [(_without(params, BIASES), x, f"drawn, of about {x:g}, with biases of 0") for x in SMALL]
    for (given, size, drawing), length in itertools.product(tries, range(1, SEARCH.T + 1)):
        x = inputs(4, size)[:1, :length]
        names = TOGETHER.get(name, (name,))
        one, other = (_reference(a, {**a.how, **{k: y.how[k] for k in names}}, given, x) for y in (a, b))
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
        sizes = layers.SIZES[k % len(layers.SIZES)]
        params, x = _case(20 + k, (1.0, *SMALL)[k % 4], a.count(sizes), sizes)
        try:
            right = a.call(params, x, sizes)
        except Failed:
            continue
        said = f"x {sizes[:3]}, F={sizes.F}" + f", {a.count(sizes)} heads" * bool(a.keyword)
        try:
            far = _far(other(given_to(a, params), x, **a.keywords(sizes))[0], right)
            said += f" (by {far:.2g} of the largest number)"
        except Failed as failed:
            far, said = np.inf, f"{said} ({failed.said})"
        count, apart = count + 1, max(apart, far)
        worst = Probe((x,), {}, said) if far > TOLERANCE and worst is None else worst
    return Equality(count, apart, worst)
