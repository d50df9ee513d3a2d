"""Findings about layers: the conventions by which they compute, and where two differ."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attendax.exits import Refusal

from ..worker.errors import Failed
from . import layers
from .asking import TOLERANCE, Probe, distance
from .comparing import Difference
from .examples import Equality
from .layers import AXES, LAW, SEARCH, Sizes, drawn
from .options import HEADS
from .remote import Function

SAID: dict[str, dict[Any, str]] = {
    "rotary": {
        "": "none", "halves": "turns the halves of a head against each other",
        "neighbours": "turns neighbours against each other",
        "halves of the whole": "turns a part, against what is half a head away",
    },
    "part": {1.0: "the whole", 0.5: "half", 0.25: "a quarter"},
}  # fmt: skip
TOGETHER = {  # conventions that are one
    "scaling": ("scaling", "factor", "trained"), "rotary": ("rotary", "part"), "frequencies": ("part", "frequencies"),
}  # fmt: skip
SCALED, NEAREST = tuple(2 ** (k / 3) for k in range(1, 17)), 6  # factors, and of how many variants one is solved for
CASES = 12
WIDE = Sizes(1, 5, 256, 12)
SMALL = 1e-2, 1e-4, 1e-6  # sizes of x at which an eps shows, if nothing is added
BIASES = {k for k in layers.shapes() if k.endswith("_bias") and "norm" not in k} | {"positions"}
Weights = Mapping[str, np.ndarray]
Choices = dict[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer as it is known, or as it is tried."""

    fn: Function
    heads: int  # how many
    keyword: str  # by which it takes that number
    reads: frozenset[str] = frozenset()  # the weights that change its result
    how: Mapping[str, Any] = dataclasses.field(default_factory=lambda: LAW)  # of each convention its own
    known: bool = False  # whether the reference gives what it gives

    def but(self, how: Mapping[str, Any]) -> "Layer":
        """The layer with other conventions."""
        return dataclasses.replace(self, how={**self.how, **how})

    def count(self, sizes: Sizes) -> int:
        """Numbers of its heads at some sizes: more where it takes their number."""
        return self.heads * (sizes.more if self.keyword else 1)

    def keywords(self, sizes: Sizes = SEARCH) -> dict[str, int]:
        """Arguments that it is always given."""
        return {self.keyword: self.count(sizes)} if self.keyword else {}

    def given(self, params: Weights) -> dict[str, np.ndarray]:
        """Weights as it takes them, from kernels (in, out)."""
        turns = self.how["kernels"] == layers.TURNED
        return {k: np.ascontiguousarray(x.T) if turns and k.endswith("_kernel") else x for k, x in params.items()}

    def call(self, params: Weights, x: np.ndarray, sizes: Sizes = SEARCH) -> np.ndarray:
        """Its result, from kernels (in, out); raises Failed where it raises."""
        return self.fn(self.given(params), x, **self.keywords(sizes))[0]

    def reference(self, params: Weights, x: np.ndarray, sizes: Sizes = SEARCH) -> np.ndarray:
        """The result that it would give, if its conventions were these; kernels are (in, out)."""
        read = {k: v for k, v in params.items() if k in self.reads | {"positions"}}
        return layers.layer(read, x, {**self.how, "kernels": LAW["kernels"]}, self.count(sizes))

    def far(self, params: Weights, x: np.ndarray, sizes: Sizes = SEARCH) -> float:
        """The distance of its result from the reference; infinite where it raises."""
        try:
            return _far(self.call(params, x, sizes), self.reference(params, x, sizes))
        except Failed:
            return np.inf


def inputs(seed: int, size: float = 1.0, sizes: Sizes = SEARCH) -> np.ndarray:
    """x (B, T, M)."""
    return (np.random.default_rng((seed, 9)).standard_normal(sizes[:3]) * size).astype(np.float32)


def describe(fn: Function, heads: int, letter: str) -> Layer:
    """Try every convention that is known; refuse what raises with kernels of either kind."""
    keyword = next((name for name in fn.names if name in HEADS), "")
    said, found = "", []
    for kernels in AXES["kernels"].values:
        made = Layer(fn, heads, keyword).but({"kernels": kernels})
        try:
            made = _settled(dataclasses.replace(made, reads=_reads(made)))
        except Failed as failed:
            said = said or failed.said
            continue
        far = max(made.far(*_case(k + 5, size, heads)) for k, size in enumerate((1.0, *SMALL)))
        found.append((far, dataclasses.replace(made, known=far < TOLERANCE)))
        if found[-1][1].known:
            break
    if not found:
        called = f"it is called with params, a dict of {', '.join(drawn(0))}, and x {SEARCH[:3]}"
        raise Refusal(f"{letter}, {fn.path}, raises: {said}; {called}")
    return min(found, key=lambda x: x[0])[1]


def _calm_enough(made: Layer) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights by which no softmax has one weight alone, and x."""
    return {k: v * np.float32(0.5) for k, v in drawn(1, heads=made.heads).items()}, inputs(1)


def _reads(made: Layer) -> frozenset[str]:
    params, x = _calm_enough(made)
    plain = made.call(params, x)
    if plain.shape != x.shape:
        raise Failed(f"it gives an array {plain.shape}, expected {x.shape}")
    moved = {k: made.call(params | {k: v + np.float32(0.5) * np.roll(v, 1, -1)}, x) for k, v in params.items()}
    return frozenset(k for k, y in moved.items() if distance((y,), (plain,)) > TOLERANCE)


def _sees_ahead(made: Layer) -> bool:
    """Tell whether another last token changes the first result."""
    params, x = _calm_enough(made)
    other = np.concatenate([x[:, :-1], -x[:, -1:]], 1)
    return distance((made.call(params, x)[:, :1],), (made.call(params, other)[:, :1],)) > TOLERANCE


def _settled(made: Layer) -> Layer:
    """Part by part: each alone first, the rest of the weights 0."""
    reads = made.reads
    attention, mlp = (
        {k for k in reads if k.split("_")[0] in names and "norm" not in k}
        for names in (("query", "key", "value", "qkv", "out"), ("up", "down", "gate"))
    )
    norms = any(k.startswith("norm") for k in reads)
    given = tuple(x for x in layers.POSITIONS if "positions" in reads or "table" not in x)
    starts: dict[str, Sequence[Any]] = {"positions": given}
    place = _values(*["place"] * (norms or bool(mlp and attention)))
    whole = _values("residual", *["norm"] * norms) | starts | place
    active = _values(*["activation"] * bool(mlp))
    if mlp:
        made = _best(made, attention, _product(whole | active | _values(*["gated"] * ("gate_kernel" in reads))))
    if attention:  # of one token, whose results have no scores
        packed = "qkv_kernel" in reads
        choices = _product(({} if mlp else whole) | _values(*["packing"] * packed))
        try:
            made = _best(made, mlp, choices, length=1)
        except Failed:  # it takes no single token
            made = _best(made, mlp, choices)
        made = made.but({"causal": "no" if _sees_ahead(made) else "yes"})
        made = _scores_of(made, mlp, ({} if mlp else starts), _product(_values(*["split"] * (not packed))))
    if any("norm" in k for k in reads):  # without biases a small x stays small up to the first norm, and eps shows
        made = _best(made, BIASES, _product(_values("eps") | (place if norms else {})), SMALL)
    if place:  # with all weights; and GELU by tanh from that by erf, which a wrong eps hides
        made = _best(made, set(), _product(place | active), (1.0, 0.01, 1e-4))
    return made


def _values(*names: str) -> Choices:
    return {name: AXES[name].values for name in names}


def _product(choices: Choices) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _scores_of(made: Layer, off: set[str], more: Choices, splits: list[dict[str, Any]]) -> Layer:
    """The description with the conventions of scores: heads, scale, rotary, and the norm of queries and keys."""
    plain = _values("scale", *["qk_norm", "qk_order"] * any("_norm_" in k for k in made.reads)) | more
    turned: list[dict[str, Any]] = [{"rotary": "halves"}, {"rotary": "neighbours"}]
    turned += [x for x in _product(_values("rotary", "part", "frequencies")) if x["rotary"] and x["part"] < 1]
    variants = [a | b for a in ({"rotary": ""}, *turned) for b in _product(plain)]
    found = [_best(made.but(split), off, variants, calm=True) for split in splits]
    if settled := [x for x in found if _left(x, off) < TOLERANCE]:
        return settled[0]
    rotary = [x for x in variants if x["rotary"]]
    with_numbers = (_with_numbers(made.but(split), off, rotary) for split in splits)
    return next(filter(None, with_numbers), found[0])


def _with_numbers(made: Layer, off: set[str], variants: list[dict[str, Any]]) -> Layer | None:
    """Rotary of another base, or scaled; the base and the factor are solved for. None where none gives the result."""
    grids: list[tuple[dict[str, Any], str, Sequence[float]]] = [({}, "base", np.geomspace(10, 1e8, 29).tolist())]
    grids += [({"scaling": "linear", "base": base}, "factor", SCALED) for base in AXES["base"].values]
    for fixed, name, grid in grids:
        nearest: dict[str, Layer] = {}  # of each variant
        for _, x in _ranked(made, off, [x | fixed | {name: n} for x in variants for n in grid], calm=True):
            nearest.setdefault(str(x.but({name: 0}).how), x)
        for near in list(nearest.values())[:NEAREST]:
            if found := _solved(near, off, name):
                return _as_ntk(found, off) if name == "base" else found
    numbers = {k: x[k != "base" :] for k, x in _values("base", "factor", "trained").items()}
    of_length = _product({"scaling": ("YaRN",)} | numbers)
    ranked = _ranked(made, off, [x | scaled for x in variants for scaled in of_length], calm=True)
    fits = [x for far, x in ranked if far < TOLERANCE]  # which a wide head tells apart
    return min(fits, key=lambda x: _left(x, off, WIDE), default=None)


def _solved(near: Layer, off: set[str], name: str) -> Layer | None:
    """The description with the number at which the result is given, to five digits; None where none near it is."""
    step = 2.0
    while step > 1 + 1e-7:
        tries = [{name: near.how[name] * step**k} for k in (-1, -0.5, 0, 0.5, 1)]
        near, step = _best(near, off, tries, calm=True), step**0.6
    rounded = (near.but({name: float(f"{near.how[name]:.{digits}g}")}) for digits in (2, 3, 4, 5))
    return next((x for x in rounded if _left(x, off) < TOLERANCE), None)


def _as_ntk(found: Layer, off: set[str]) -> Layer:
    """A base that is another one at another width of heads is that of NTK scaling."""
    how, sizes = found.how, layers.SIZES[-1]
    width = SEARCH.M // found.heads
    if how["frequencies"] == LAW["frequencies"]:
        width = int(width * how["part"]) // 2 * 2
    for base in AXES["base"].values if width > 2 else ():
        factor = max(how["base"] / base, 1.0) ** ((width - 2) / width)
        scaled = found.but({"base": base, "scaling": "NTK", "factor": float(f"{factor:.3g}")})
        near = factor > 1 and abs(factor - scaled.how["factor"]) < 1e-2 * factor
        if near and _left(scaled, off, sizes) < TOLERANCE:
            return scaled if _left(found, off, sizes) > TOLERANCE else found
    return found


def _left(made: Layer, off: set[str], sizes: Sizes = SEARCH) -> float:
    """The distance of the reference from the layer, where some of the weights are 0."""
    return made.far(_without(drawn(8, sizes, made.count(sizes)), off, calm=True), inputs(8, 1.0, sizes), sizes)


def _best(made: Layer, off: set[str], choices: list[dict[str, Any]], *args: Any, **more: Any) -> Layer:
    """The description with the choice under which the reference is nearest, where some of the weights are 0."""
    return _ranked(made, off, choices, *args, **more)[0][1]


def _ranked(
    made: Layer, off: set[str], choices: list[dict[str, Any]], sizes: Sequence[float] = (1.0,), length: int = SEARCH.T,
    calm: bool = False,
) -> list[tuple[float, Layer]]:  # fmt: skip
    """The layer with each choice, and how far the reference then is from it: the nearest first.

    Where weights are ``calm`` no softmax is of one key alone.
    """
    cases = [
        (_without(drawn(k + 2, heads=made.heads), off, calm), inputs(k, size)[:, :length])
        for k, size in enumerate(sizes)
    ]
    right = [made.call(*case) for case in cases]

    def far(tried: Layer) -> float:
        return max(_far(y, tried.reference(*case)) for case, y in zip(cases, right, strict=True))

    return sorted(((far(tried), tried) for tried in map(made.but, choices)), key=lambda x: x[0])


def _far(found: np.ndarray, right: np.ndarray) -> float:
    """The distance, as a share of the largest number, however small that is."""
    size = np.abs(right).max() or 1.0
    return distance((found / size,), (right / size,))


def _case(seed: int, size: float, heads: int, sizes: Sizes = SEARCH) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights and x; to the smallest x no bias is added, beside which it would not count."""
    params = drawn(seed, sizes, heads)
    return _without(params, BIASES) if size < SMALL[0] else params, inputs(seed, size, sizes)


def _without(params: Weights, off: set[str], calm: bool = False) -> dict[str, np.ndarray]:
    """Weights of which some are 0; calm ones have kernels that keep the size of what they multiply."""
    less = np.float32(8**-0.5)  # of kernels as they are drawn
    calmed = {k: x * less if calm and k.endswith("_kernel") else x for k, x in params.items()}
    return {k: np.zeros_like(x) if k in off else x for k, x in calmed.items()}


def differences(a: Layer, b: Layer) -> Iterator[Difference]:
    """Each convention by which two layers differ, with the smallest input that shows it."""
    for name, axis in AXES.items():
        told = _told(a.how, name), _told(b.how, name)
        differ = axis.words and told[0] != told[1] and all(_has(name, x) for x in (a, b))
        if differ and (shown := _shown(a, b, name)):  # without it no input tells the two apart
            yield Difference(axis.words, *told, shown)
    alone = [sorted(x.reads - y.reads) for x, y in ((a, b), (b, a))]
    if any(alone):
        yield Difference("weights", *(f"alone reads {', '.join(x)}" if x else "reads no others" for x in alone))


def _told(how: Mapping[str, Any], name: str) -> str:
    value = how[name]
    if name == "scaling" and value:
        return f"{value} by {how['factor']:g}" + f", trained on {how['trained']}" * (value == "YaRN")
    return SAID.get(name, {}).get(value, f"{value:g}" if isinstance(value, float) else str(value)) or "none"


def _has(name: str, x: Layer) -> bool:
    """Tell whether the layer has what a convention is of."""
    if name in ("part", "frequencies", "base", "scaling"):
        return bool(x.how["rotary"])
    needs = AXES[name].needs
    return not needs or any(k.startswith(needs) for k in x.reads)


def _shown(a: Layer, b: Layer, name: str) -> str:
    """The shortest text that shows a convention alone: A's layer, and the same with B's convention."""
    params = drawn(4, heads=a.heads)
    tries = [(params, 1e-2 if name == "eps" else 1.0, "drawn")]
    if name == "eps":
        tries += [(_without(params, BIASES), x, f"drawn, of about {x:g}, with biases of 0") for x in SMALL]
    for (given, size, drawing), length in itertools.product(tries, range(1, SEARCH.T + 1)):
        x = inputs(4, size)[:1, :length]
        names = TOGETHER.get(name, (name,))
        one, other = (a.but({k: y.how[k] for k in names}).reference(given, x) for y in (a, b))
        if name == "kernels":
            try:
                other = b.fn(a.given(given), x, **b.keywords())[0]
            except Failed as failed:
                return f"given A's, B raises {failed.said}"
        if _far(other, one) > TOLERANCE:
            at = np.unravel_index(int(np.argmax(np.abs(one - other))), one.shape)
            said = f"a text of {length} token{'s' * (length > 1)}, {drawing}: A gives {one[at]:.6g}"
            return f"{said}, with what B has in its place {other[at]:.6g}"
    return ""


def equality(a: Layer, other: Callable[..., tuple[np.ndarray, ...]], cases: int = CASES) -> Equality:
    """The distance of another function from A's layer, called alike, at sizes in turn; a refusal of A is no case."""
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
            far = _far(other(a.given(params), x, **a.keywords(sizes))[0], right)
            said += f" (by {far:.2g} of the largest number)"
        except Failed as failed:
            far, said = np.inf, f"{said} ({failed.said})"
        count, apart = count + 1, max(apart, far)
        worst = Probe((x,), {}, said) if far > TOLERANCE and worst is None else worst
    return Equality(count, apart, worst)
