"""Findings about a layer: the conventions by which it computes."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attendax.exits import Refusal

from ..worker.errors import Failed
from . import layers
from .asking import TOLERANCE, distance
from .layers import LAW, LAYER_AXES, SEARCH, LayerSizes, drawn
from .options import HEAD_NAMES
from .remote import Function

QK = "qk_norm", "qk_order"  # axes
# Factors, and of how many variants one is solved for.
SCALE_FACTORS, NEAREST_VARIANTS = tuple(2 ** (k / 3) for k in range(1, 17)), 6
WIDE_SIZES = LayerSizes(1, 5, 256, 12)
SMALL_SCALES = 1e-2, 1e-4, 1e-6  # sizes of x at which an eps shows, if nothing is added
BIASES = {k for k in layers.shapes() if k.endswith("_bias") and "norm" not in k} | {"positions"}
Choices = list[dict[str, Any]]


class LayerInputs(NamedTuple):
    """Weights, whose kernels are (in, out), and x."""

    params: Mapping[str, np.ndarray]
    x: np.ndarray
    sizes: LayerSizes

    def but(self, off: set[str]) -> "LayerInputs":
        """The case with some of its weights 0."""
        return self._replace(params={k: np.zeros_like(x) if k in off else x for k, x in self.params.items()})


def case(seed: int, heads: int, size: float = 1.0, sizes: LayerSizes = SEARCH, *, calm: bool = False) -> LayerInputs:
    """A case for so many heads; calm kernels keep the size of what they multiply: no softmax is of one key alone."""
    less = np.float32(8**-0.5 if calm else 1)
    params = {k: x * less if k.endswith("_kernel") else x for k, x in drawn(seed, sizes, heads).items()}
    return LayerInputs(params, layers.inputs(seed, size, sizes), sizes)


def of_size(seed: int, heads: int, size: float, sizes: LayerSizes = SEARCH) -> LayerInputs:
    """A case; to the smallest x no bias is added, beside which it would not count."""
    return case(seed, heads, size, sizes).but(BIASES if size < SMALL_SCALES[0] else set())


@dataclasses.dataclass(frozen=True)
class CandidateLayer:
    """A layer as it is known, or as it is tried."""

    fn: Function
    heads: int  # how many
    keyword: str  # by which it takes that number
    reads: frozenset[str] = frozenset()  # the weights that change its result
    how: Mapping[str, Any] = dataclasses.field(default_factory=lambda: LAW)  # of each convention its own
    known: bool = False  # whether the reference gives what it gives

    @property
    def parts(self) -> frozenset[str]:
        """The weights that it reads, and rotary, if it has that."""
        return self.reads | ({"rotary"} if self.how["rotary"] else set())

    def but(self, how: Mapping[str, Any]) -> "CandidateLayer":
        """The layer with other conventions."""
        return dataclasses.replace(self, how={**self.how, **how})

    def count(self, sizes: LayerSizes) -> int:
        """Numbers of its heads at some sizes: more where it takes their number."""
        return self.heads * (sizes.more if self.keyword else 1)

    def keywords(self, sizes: LayerSizes = SEARCH) -> dict[str, int]:
        """Arguments that it is always given."""
        return {self.keyword: self.count(sizes)} if self.keyword else {}

    def given(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Weights as it takes them, from kernels (in, out)."""
        turns = self.how["kernels"] == layers.OUT_IN
        return {k: np.ascontiguousarray(x.T) if turns and k.endswith("_kernel") else x for k, x in params.items()}

    def call(self, at: LayerInputs) -> np.ndarray:
        """Its result; raises Failed where it raises."""
        return self.fn(self.given(at.params), at.x, **self.keywords(at.sizes))[0]

    def reference(self, at: LayerInputs) -> np.ndarray:
        """The result that it would give, if its conventions were these."""
        read = {k: v for k, v in at.params.items() if k in self.reads | {"positions"}}
        return layers.layer(read, at.x, {**self.how, "kernels": LAW["kernels"]}, self.count(at.sizes))

    def far(self, at: LayerInputs) -> float:
        """The distance of its result from the reference; infinite where it raises."""
        try:
            return far(self.call(at), self.reference(at))
        except Failed:
            return np.inf

    def ranked(
        self, choices: Choices, off: set[str], sizes: Sequence[float] = (1.0,), length: int = SEARCH.T, *,
        calm: bool = False,
    ) -> list[tuple[float, "CandidateLayer"]]:  # fmt: skip
        """The layer with each choice, and how far the reference then is from it, some weights 0: the nearest first."""
        cases = [case(k + 2, self.heads, size, calm=calm).but(off) for k, size in enumerate(sizes)]
        cases = [at._replace(x=at.x[:, :length]) for at in cases]
        right = [self.call(at) for at in cases]
        tries = ((self.but(x), [self.but(x).reference(at) for at in cases]) for x in choices)
        found = [(max(map(far, right, given)), tried) for tried, given in tries]
        return sorted(found, key=lambda x: x[0])

    def best(self, choices: Choices, off: set[str], *args: Any, **more: Any) -> "CandidateLayer":
        """The layer with the choice under which the reference is nearest."""
        return self.ranked(choices, off, *args, **more)[0][1]

    def left(self, off: set[str], sizes: LayerSizes = SEARCH) -> float:
        """The distance of the reference, where some of the weights are 0."""
        return self.far(case(8, self.count(sizes), 1.0, sizes, calm=True).but(off))


def far(found: np.ndarray, right: np.ndarray) -> float:
    """The distance, as a share of the largest number, however small that is."""
    size = np.abs(right).max() or 1.0
    return distance((found / size,), (right / size,))


def describe(fn: Function, heads: int, letter: str) -> CandidateLayer:
    """Try every convention that is known; refuse what raises with kernels of either kind."""
    keyword = next((name for name in fn.names if name in HEAD_NAMES), "")
    said, found = "", []
    for kernels in LAYER_AXES["kernels"].values:
        made = CandidateLayer(fn, heads, keyword).but({"kernels": kernels})
        try:
            made = _settled(dataclasses.replace(made, reads=_reads(made)))
        except Failed as failed:
            said = said or failed.said
            continue
        apart = max(made.far(of_size(k + 5, heads, size)) for k, size in enumerate((1.0, *SMALL_SCALES)))
        found.append((apart, dataclasses.replace(made, known=apart < TOLERANCE)))
        if found[-1][1].known:
            break
    if not found:
        called = f"it is called with params, a dict of {', '.join(layers.shapes())}, and x {SEARCH[:3]}"
        raise Refusal(f"{letter}, {fn.path}, raises: {said}; {called}")
    return min(found, key=lambda x: x[0])[1]


def _reads(made: CandidateLayer) -> frozenset[str]:
    at = case(1, made.heads, calm=True)
    plain = made.call(at)
    if plain.shape != at.x.shape:
        raise Failed(f"it gives an array {plain.shape}, expected {at.x.shape}")
    moved = {k: {**at.params, k: v + np.float32(0.5) * np.roll(v, 1, -1)} for k, v in at.params.items()}
    return frozenset(k for k, x in moved.items() if far(made.call(at._replace(params=x)), plain) > TOLERANCE)


def _of(*names: str) -> Choices:
    """Each combination of the values of some axes."""
    return [dict(zip(names, x, strict=True)) for x in itertools.product(*(LAYER_AXES[name].values for name in names))]


def _settled(made: CandidateLayer) -> CandidateLayer:
    """Part by part: each alone first, the rest of the weights 0."""
    reads = made.reads
    attention, mlp = (
        {k for k in reads if k.split("_")[0] in names and "norm" not in k}
        for names in (("query", "key", "value", "qkv", "out"), ("up", "down", "gate"))
    )
    norms = any(k.startswith("norm") for k in reads)
    place = ["place"] * (norms or bool(mlp and attention))
    whole = ["residual", *["norm"] * norms, "positions", *place]
    active = ["activation"] * bool(mlp)

    def of(*names: str) -> Choices:
        return [x for x in _of(*names) if "positions" in reads or "table" not in x.get("positions", "")]

    if mlp:
        made = made.best(of(*whole, *active, *["gated"] * ("gate_kernel" in reads)), attention)
    if attention:  # of one token, whose results have no scores
        packed = "qkv_kernel" in reads
        choices = of(*[] if mlp else whole, *["packing"] * packed)
        try:
            made = made.best(choices, mlp, length=1)
        except Failed:  # it takes no single token
            made = made.best(choices, mlp)
        at = case(1, made.heads, calm=True)
        other = at._replace(x=np.concatenate([at.x[:, :-1], -at.x[:, -1:]], 1))  # another last token
        ahead = far(made.call(other)[:, :1], made.call(at)[:, :1]) > TOLERANCE
        made = made.but({"causal": "no" if ahead else "yes"})
        norm = list(QK) * any("_norm_" in k for k in reads)
        made = _scores_of(made, mlp, of("scale", *norm, *[] if mlp else ["positions"]), _of(*["split"] * (not packed)))
    if any("norm" in k for k in reads):  # without biases a small x stays small up to the first norm, and eps shows
        made = made.best(_of("eps", *place if norms else []), BIASES, SMALL_SCALES)
    if place:  # with all weights; and GELU by tanh from that by erf, which a wrong eps hides
        made = made.best(_of(*place, *active), set(), (1.0, 0.01, 1e-4))
    return made


def _scores_of(made: CandidateLayer, off: set[str], plain: Choices, splits: Choices) -> CandidateLayer:
    """The description with the conventions of scores: heads, scale, rotary, and the norm of queries and keys."""
    turned: Choices = [{"rotary": "halves"}, {"rotary": "neighbours"}]
    turned += [x for x in _of("rotary", "part", "frequencies") if x["rotary"] and x["part"] < 1]
    rotary = [a | b for a in turned for b in plain]
    found = [made.but(x).best([{"rotary": ""} | y for y in plain] + rotary, off, calm=True) for x in splits]
    if settled := [x for x in found if x.left(off) < TOLERANCE]:
        return settled[0]
    if not _counts_places(made, off):  # nothing is turned, by whatever number
        return found[0]
    # Else it takes minutes.
    rotary = [x for x in rotary if sum(LAW[k] != x[k] for k in ("scale", *QK) if k in x) <= 1]
    with_numbers = (_with_numbers(made.but(split), off, rotary) for split in splits)
    return next(filter(None, with_numbers), found[0])


def _counts_places(made: CandidateLayer, off: set[str]) -> bool:
    """Tell whether the last token's result is another one where the two first tokens are swapped."""
    at = case(1, made.heads, calm=True).but(off)
    swapped = at._replace(x=at.x[:, [1, 0, *range(2, at.x.shape[1])]])
    return far(made.call(swapped)[:, -1:], made.call(at)[:, -1:]) > TOLERANCE


def _with_numbers(made: CandidateLayer, off: set[str], variants: Choices) -> CandidateLayer | None:
    """Rotary of another base, or scaled; the base and the factor are solved for. None where none gives the result.

    NTK scaling is another base, which at another width of heads is another one.
    """
    grids: list[tuple[dict[str, Any], str, Sequence[float]]] = [({}, "base", np.geomspace(10, 1e8, 29).tolist())]
    scaled = itertools.product(("NTK", "linear"), LAYER_AXES["base"].values)
    grids += [({"scaling": scaling, "base": base}, "factor", SCALE_FACTORS) for scaling, base in scaled]
    of_one_width = None
    for fixed, name, grid in grids:
        if fixed.get("scaling") == "NTK" and of_one_width is None:
            continue
        nearest: dict[str, CandidateLayer] = {}  # of each variant
        for _, x in made.ranked([x | fixed | {name: n} for x in variants for n in grid], off, calm=True):
            nearest.setdefault(str(x.but({name: 0}).how), x)
        for near in list(nearest.values())[:NEAREST_VARIANTS]:
            if (found := _solved(near, off, name)) and found.left(off, layers.SIZES[-1]) < TOLERANCE:
                return found
            of_one_width = of_one_width or found
    yarn = [{"scaling": "YaRN", **x} for x in _of("base", "factor", "trained") if x["factor"] > 1 and x["trained"]]
    ranked = made.ranked([x | scaling for x, scaling in itertools.product(variants, yarn)], off, calm=True)
    fits = [x for apart, x in ranked if apart < TOLERANCE]  # which a wide head tells apart
    return min(fits, key=lambda x: x.left(off, WIDE_SIZES), default=of_one_width)


def _solved(near: CandidateLayer, off: set[str], name: str) -> CandidateLayer | None:
    """The description with the number at which the result is given, to five digits; None where none near it is."""
    step = 2.0
    while step > 1 + 1e-7:
        tries = [{name: near.how[name] * step**k} for k in (-1, -0.5, 0, 0.5, 1)]
        near, step = near.best(tries, off, calm=True), step**0.6
    rounded = (near.but({name: float(f"{near.how[name]:.{digits}g}")}) for digits in (2, 3, 4, 5))
    return next((x for x in rounded if x.left(off) < TOLERANCE), None)
