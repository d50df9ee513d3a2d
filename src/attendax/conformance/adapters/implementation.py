"""The subject of a judgement: a function of the protocol, its conventions, and the text that makes it."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..cases import kinds, square
from ..cases.invariance import TO_THE_END
from ..conventions.table import DECLARED, TABLE, in_full, is_value, known_values
from ..frameworks import corrected

OPTIONS = (
    "mask", "bias", "is_causal", "scale", "softcap", "window", "key_lengths", "query_segment_ids", "key_segment_ids",
    "dropout_rate", "dropout_rng", "return_lse", "offset", "sinks",
)  # fmt: skip
TRAITS = (  # what no keyword shows
    *square.TRAITS, *square.ALIKE, square.TIME, square.SYMMETRIC, "grouped heads", "V != D", "odd widths",
    "rank 2", "rank 3", "rank 5", "batch", "heads", "heads apart", square.SEGMENTS_APART, "empty arrays", "not finite",
    *(f"{x} of rank {rank}" for x in ("mask", "bias") for rank in range(1, 5)),
    "gradients", "gradient of bias", "gradient of sinks", "determinism", "float64", "float32", "bfloat16", "float16",
)  # fmt: skip
PROTOCOL_TRAITS = (*TRAITS, *OPTIONS)
ANY, PACKED = square.Restrictions(), "(BT)ND"  # a layout: sequences behind each other
RANK_4 = {f"rank {rank}": "arrays of rank 4" for rank in (2, 3, 5)}


NOT_COMPILED = {"forward": "eager", "held": "eager_held"}  # functions of JAX's driver, with jit and without


@dataclasses.dataclass(frozen=True)
class Implementation:
    """A function to test, and what is declared of it.

    Attributes:
        attend: ``fn(query, key, value, *, mask=None, ...)`` on arrays (..., N, T, D) of its framework.
        name: name in the report.
        arrays: "jax", "torch" or "numpy".
        backward: gradients of a NumPy function: ``backward(grad_output, query, key, value, *, ..., grad_lse=None)``.
        means: conventions by which it is judged, where they are not the law's: the value of an axis of
            ``conventions.table`` by the name of the axis, as in ``--expect``: {"causal": "end", "empty": "NaN"}.
        lacks: names of ``TRAITS`` and ``OPTIONS`` that it does not offer, each with the reason.
        source: Python that defines ``attend`` in a reproduction.
        eager: whether JAX must not compile it.
        optimized: whether JAX compiles also small calls with all of XLA's optimizations.
        version: version of its library.
        device: device of its arrays, by the name of its framework; by default the framework's own.
        layout: layout of its arrays, if it is not that of ``attend``.
        process: reason why it is called in this process; empty if another process calls it.
        form: restrictions on the calls that it takes.
        foreign: whether it is not a Python function: then it has results and gradients, and nothing of its caller.
        recorded: whether its results are in a folder: then only the cases there are tested.
        guessed: other frameworks whose arrays it may take, if the framework was guessed.
    """

    attend: Callable[..., Any]
    name: str
    arrays: str = "jax"
    backward: Callable[..., Any] | None = None
    means: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""
    eager: bool = False
    optimized: bool = False
    version: str = ""
    device: str = ""
    layout: str = ""
    process: str = "its functions were given"
    form: square.Restrictions = ANY
    foreign: bool = False
    recorded: bool = False
    guessed: tuple[str, ...] = ()

    __hash__ = object.__hash__  # of itself: what it holds may have none

    @property
    def guess(self) -> str:
        """The option that corrects the guess of its arrays; empty where nothing was guessed."""
        found = corrected(self.arrays, self.guessed, 'arrays = "{}"')
        return found and f"{found} in a contract file"

    def __post_init__(self) -> None:
        """Refuse settings that are none; a function carries its backward."""
        object.__setattr__(self, "means", in_full(self.means))
        kinds.checked("means", self.means, tuple(TABLE))
        for axis, value in self.means.items():
            if not is_value(axis, value):
                kinds.checked(axis, value, known_values(axis))
        kinds.checked("lacks", sorted(self.lacks), PROTOCOL_TRAITS)
        if self.backward is not None and getattr(self.attend, "backward", None) is not self.backward:
            attend: Any = functools.partial(self.attend)
            attend.backward = self.backward
            object.__setattr__(self, "attend", attend)

    @property
    def elsewhere(self) -> bool:
        """True where the function is in another process, or its answers lie in a folder."""
        return hasattr(self.attend, "ask") or self.recorded

    def way(self, direction: str) -> str:
        """The function of a driver for a direction: "gradient of a loss, mean" is computed by "gradient_of_a_loss"."""
        name = direction.partition(", ")[0].replace(" ", "_")
        return NOT_COMPILED.get(name, name) if self.eager and self.arrays == "jax" else name

    def lack(self, traits: list[str]) -> tuple[str, str] | None:
        """The first of the traits of a case that it does not offer, and why; None if it offers all."""
        accepted = keywords(self.attend)
        for trait in traits:
            if trait in self.lacks:
                return trait, self.lacks[trait]
            if trait == TO_THE_END and self.means.get("causal") != DECLARED["end"]:
                return trait, "is_causal begins at the first key"
            if trait in OPTIONS and accepted is not None and trait not in accepted:
                others = unknown(self.attend)
                return trait, f"no argument {trait}" + (f"; never given: {', '.join(others)}" if others else "")
        return None


def lacking(traits: Mapping[str, str] | str | Iterable[str] | None) -> dict[str, str]:
    """Traits with the reason; one that the user gives none for is said to be lacking."""
    words = [traits] if isinstance(traits, str) else traits or ()
    return dict(words) if isinstance(words, Mapping) else dict.fromkeys(words, "said to be lacking")


def unknown(function: Callable[..., Any]) -> list[str]:
    """The parameters after query, key and value that are not keywords of the protocol: they may have other names."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[3:]
    except (TypeError, ValueError):
        return []
    bound = getattr(function, "keywords", {})
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [name for name in named if name not in OPTIONS and name not in bound]


def signature(accepted: Iterable[str] | None, others: Iterable[str] = ()) -> inspect.Signature:
    """The signature of a function of some keywords of the protocol, all unless given, and others beside them."""
    named = [name for name in OPTIONS if name in set(accepted or ())]
    found = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("query", "key", "value")]
    found += [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY) for x in (*named, *others)]
    more = inspect.Parameter("more", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature(found if accepted is not None else [*found, more])


def keywords(function: Callable[..., Any]) -> set[str] | None:
    """The names that a function takes as keywords; None if it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
