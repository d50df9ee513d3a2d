"""A model in this process: as its adapter offers it, how it is run, and a script that shows a fault of it."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Leaves
from ..frameworks import framework, kind_of
from ..frameworks.shared import per_position, result_of
from ..frameworks.text import defined, import_line, printed, text_of
from ..worker.calling import WROTE, Subject
from ..worker.errors import Failed
from .blackbox import COUNT, LONGER, Computation, Model, direction, vectors, weights_of
from .trial import NARROW_DTYPES, PARTS, Found, Law

EMBEDDED = "gradient_of_embedded"


ENDINGS = {
    "equal": "assert np.abs(one - other).max() <= {allowed:.3g}",
    "other": "assert np.abs(one - other).max() > {allowed:.3g}, 'nothing changed'",
    "finite": "assert np.isfinite(one).all()",
    "zero": "assert np.abs(one).max() <= {allowed:.3g}",
    "some": "assert np.abs(one).max() > 0, 'no gradient'",
    "mean": "assert abs(share - 1) <= {allowed:.3g}",
}
MEAN = """\
draws = [{call} for seed in range({draws})]
share = (np.mean(draws, 0) * plain).sum() / (plain * plain).sum()
print('mean of the draws, times the result without dropout:', share)"""


class Way(NamedTuple):
    """Another way of running a model."""

    of: Callable[..., Any] | None = None  # makes of the model the one that is run, by the same adapter
    args: tuple[Any, ...] = ()  # of that, beside the model
    more: tuple[Any, ...] = ()  # further arguments of the adapter
    around: str = ""  # the function of a driver that makes of ``apply`` the one that is run; "" where none does
    forward: str | None = ""  # the function of a driver that runs it; "" the plain one, None where that is not asked
    gradient: str | None = ""  # None where it is not asked


class Offer(NamedTuple):
    """A model as its adapter offers it."""

    apply: Callable[..., Any]  # from inputs and keywords to results
    arrays: str | None = None  # of which framework
    made: Callable[..., Any] | None = None  # the function that made ``apply`` of the model, if any did
    facts: Mapping[str, Any] = {}  # what the model says of itself, under the names of ``check_model``
    ways: Mapping[str, Way] = {}  # others of running it, which have to give the same
    embedding: Any = None  # of a torch module, gives what turns tokens into vectors
    given: tuple[Any, ...] = ()  # what else that was given
    heads: Any = None  # of a layer of attention, gives its weights (``WEIGHTS``)
    otherwise: "Offer | None" = None  # what is offered where the plainest call of this one fails


def with_seed(signature):
    """The signature with a keyword ``seed``."""
    kept = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD and x.name != "seed"]
    return inspect.Signature([*kept, inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=None)])


class Runner(Subject):
    """A model, as its adapter offers it, and how it is run: with arrays of a framework, ``eager`` where not compiled.

    The width is of vectors, None for tokens; ``said`` has ``cache``, ``ways`` and ``heads`` of ``check_model``. It runs
    the very text that a script prints, ``call``.
    """

    asked = Computation
    dtype, gives = "", ""  # of the results and of which framework they are, as the model gives them

    def __init__(
        self, offer: Offer, target: Any, arrays: str, eager: bool, width: int | None, said: Mapping[str, Any]
    ) -> None:
        self.offer, self.target, self.arrays, self.driver = offer, target, arrays, framework(arrays)
        self.table = None if width is None else vectors(width)
        self.cache, self.keywords = said.get("cache"), said.get("ways") or {}
        self.heads = said.get("heads") or offer.heads
        of_driver = {name: Way(None, (), (), *of) for name, of in self.driver.WAYS.items() if not eager}
        self._ways = {"": Way()} | of_driver | dict(offer.ways) | {name: Way() for name in self.keywords}
        self.ways: dict[str, tuple[str, ...]] = {}  # the names of all ways, and what is asked of each
        self.text = {"inputs": "tokens" if width is None else "table[tokens]"}  # of ``call``
        gradient = EMBEDDED if width is None and offer.embedding else "gradient"
        for name, way in self._ways.items():
            asked = {"results": way.forward, "gradient": way.gradient}
            self.ways |= {name: tuple(what for what, by in asked.items() if by is not None)} if name else {}
            apply = "of_way" if name in self.keywords or way.of else "apply"
            apply = f"{way.around}({apply})" if way.around else apply
            self.text[f"way {name}"] = f"{way.forward or ('eager' if eager else 'forward')} {apply}"
            self.text[f"gradient of {name}"] = f"{gradient} {apply}"

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights of a layer of attention; raises NotImplementedError where it is not attention of these alone."""
        return weights_of(self.heads(self.target))

    def answer(self, request: Computation) -> Leaves:
        """Results (B, T, C), the gradient (B, T, M), or a weight, as a copy; and marks of the arrays it wrote to."""
        if request.read == PARTS:
            return {"out": self._parts(request)}
        if request.read:
            return {"out": self.weights.get(request.read, np.zeros(0))}
        as_given = np.int64 if self.arrays == "torch" else np.int32  # which ``per_position`` leaves as they are
        own = {name: x.copy() for name, x in request.options.items()}
        request = request._replace(tokens=request.tokens.astype(as_given), options=own)
        model, attend = (None, None) if request.chunks else self._made(request.way)
        names = vars(self.driver) | request._asdict() | dict(table=self.table, cache=self.cache)
        names |= dict(model=model, model_of_way=model, attend=attend, attend_of_way=attend)
        names |= dict(direction=direction, embedding=self.offer.embedding)
        with self.driver.watched({"inputs": request.tokens} | own) as written:
            found = np.array(eval(call(self.text, request), names))
            wrote = {f"{WROTE}{name}": np.array(True) for name in written()}
        if found.shape[:2] != request.tokens.shape or found.dtype.kind not in "fVi":
            said = f"gives {found.dtype} of shape {found.shape} for inputs {request.tokens.shape}"
            if request.weights is not None:
                raise NotImplementedError(f"its embedding is not of each token: the gradient {said}")
            raise Failed(f"{said}, expected numbers of shape (B, T, ...)")
        return {"out": found if found.dtype in (np.float64, np.float16) else found.astype(np.float32)} | wrote

    @functools.lru_cache  # noqa: B019  # JAX compiles anew for a function that is new
    def _made(self, name: str) -> tuple[Any, Callable[..., Any]]:
        """The model that is run in a way, and as a function for the driver."""
        way, model = self._ways[name], self.target
        apply: Any = functools.partial(self.offer.apply, **self.keywords.get(name, {}))
        if way.of and self.offer.made:
            model = way.of(model, *way.args)
            apply = self.offer.made(model, *self.offer.given, *way.more)
        apply = apply if name else self._noted(apply)
        return model, per_position(getattr(self.driver, way.around)(apply) if way.around else apply)

    def _parts(self, request: Computation) -> np.ndarray:
        """Tell of each narrow dtype whether parts of the model are computed in it."""
        inputs = request.tokens.astype(np.int64 if self.arrays == "torch" else np.int32)
        given = {"query": inputs if self.table is None else self.table[inputs]}
        found = self.driver.dtypes(self._made("")[1], given, {})
        return np.array([name in found for name in NARROW_DTYPES])

    def _noted(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Run the same model; it notes the dtype and the kind of its results, which a driver may change."""

        def noted(*inputs: Any, **options: Any) -> Any:
            found = apply(*inputs, **options)
            self.dtype = str(getattr(result_of(found), "dtype", "")).removeprefix("torch.")
            self.gives = kind_of(result_of(found))
            return found

        return noted

    def lines(self, path: str | None) -> dict[str, str]:
        """Python that makes the model, its cache and its ways, and the functions that run it; by name."""
        offer, found = self.offer, dict(self.text)
        if offer.made is None:
            found["model"] = import_line(self.target, path, "apply")
        else:
            parts = [import_line(self.target, path, "model"), defined(offer.made), _made_by(offer.made, offer.given)]
            found["model"] = "\n".join(parts)
        for name, way in self._ways.items():
            if name in self.keywords:
                partial = f"functools.partial(apply, **{self.keywords[name]!r})"
                found[f"made {name}"] = f"import functools\n\nof_way = {partial}"
            elif way.of and offer.made:
                parts = [defined(way.of), _made_by(way.of, way.args, made="model_of_way")]
                parts.append(_made_by(offer.made, (*offer.given, *way.more), "model_of_way", "of_way"))
                found[f"made {name}"] = "\n".join(parts)
        if offer.embedding is not None and self.table is None:
            found["embedding"] = f"{inspect.getsource(offer.embedding)}\nembedding = {offer.embedding.__name__}"
        of_ours = self.cache and getattr(self.cache[1], "__module__", "") == f"{__package__}.of_torch"
        if self.cache and not of_ours and not any(getattr(f, "__closure__", None) for f in self.cache):
            named = dict(zip(("init", "step", "reorder"), self.cache, strict=False))
            parts = [import_line(f, None, name) for name, f in named.items()]
            found["cache"] = "\n".join([*parts, f"cache = {', '.join(named)}"])
        return found


def _made_by(function: Callable[..., Any], given: tuple[Any, ...], first: str = "model", made: str = "apply") -> str:
    return f"{made} = {function.__name__}({', '.join([first, *map(repr, given)])})"


def attend_of(apply: str) -> str:
    """The name of a model in a way, as a function for the driver."""
    return "attend" if apply == "apply" else "attend_of_way"


def run_of(text: Mapping[str, str], request: Computation) -> tuple[str, str]:
    """The function of the driver that runs a request, and what it runs."""
    function, _, apply = text[f"{'way' if request.weights is None else 'gradient of'} {request.way}"].partition(" ")
    return ("in_steps", "cache") if request.chunks else (function, apply)


def call(text: Mapping[str, str], request: Computation) -> str:
    """The line of Python that runs a request."""
    run, apply = run_of(text, request)
    inputs = text["inputs"]
    if request.chunks:
        return f"in_steps(cache, {inputs}, options, {request.chunks}, {request.room}, {request.order})['out']"
    given = f"{attend_of(apply)}, dict(query={inputs}), options"
    if request.weights is None:
        return f"{run}({given})['out']"
    given += f", dict(out=weights[:, :, None] * direction({text['results']}))"
    embedding = f", embedding({'model_of_way' if 'of_way' in apply else 'model'})" * (run == EMBEDDED)
    return f"{run}({given}{embedding})['grad query']"


def script(model: Model, law: Law, found: Found) -> str:
    """The script; it ends in an error as long as the fault is there."""
    about = f"# {law.case.name}: {law.case.about}\n# {model.name}: {found.finding.message}"
    evidence, header = found.evidence, text_of(model.arrays).header
    if evidence is None:
        return f"{about}\n\n{header}\n\n{model.lines['model']}\n"
    asked = {"one": (evidence.one, evidence.at), "other": (evidence.other, evidence.beside)}
    if evidence.kind in ("finite", "zero", "some"):
        del asked["other"]
    requests = [x for x, _ in asked.values() if isinstance(x, Computation)]
    parts = [about, header, *_driver(model, requests), "# the inputs"]
    ending = ENDINGS[evidence.kind].format(allowed=evidence.allowed)
    if evidence.kind == "mean" and isinstance(plain := evidence.one, Computation):
        drawn = evidence.other
        of_seed = call(model.lines, drawn).replace("options", "dict(seed=np.array(seed, np.int32))")
        told = MEAN.format(call=of_seed, draws=int(drawn.options["seed"]))
        lines = [*_inputs(plain), f"plain = {call(model.lines, plain)}.astype(float)", told, ending]
        return "\n\n".join([*parts, "\n".join(lines)]) + "\n"
    for name, (x, at) in asked.items():
        if isinstance(x, Computation):
            parts.append("\n".join([*_inputs(x), f"{name} = {call(model.lines, x)}[{at[0]}, {at[1]}]"]))
        else:
            parts.append(f"{name} = {_literal(x)}  # what is right there, in float64")
    parts.append(f"print('largest:', np.abs({' - '.join(asked)}).max())\n{ending}")
    return "\n\n".join(parts) + "\n"


def _driver(model: Model, requests: list[Computation]) -> list[str]:
    """Lines that make the model, and the functions that run it."""
    parts = ["# the model", model.lines["model"]]
    if any(request.chunks for request in requests):
        parts.append(model.lines.get("cache", "raise NotImplementedError('define cache here: functions init, step')"))
    parts += filter(None, [model.lines.get(f"made {way}") for way in dict.fromkeys(x.way for x in requests)])
    runs = dict.fromkeys(run_of(model.lines, request) for request in requests)
    made = {attend_of(apply): apply for run, apply in runs if run != "in_steps"}
    around = (apply.partition("(")[0] for apply in made.values() if "(" in apply)
    parts += ["# how it is run", printed(model.arrays, (*(run for run, _ in runs), "per_position", *around))]
    parts += ["\n".join(f"{name} = per_position({apply})" for name, apply in made.items())] * bool(made)
    if model.inputs == "vectors":
        source = inspect.getsource(vectors).rstrip()
        parts += [f"COUNT, LONGER = {COUNT}, {LONGER}\n\n\n{source}", f"table = vectors({model.lines['width']})"]
    if any(request.weights is not None for request in requests):
        parts += [inspect.getsource(direction).rstrip(), *filter(None, [model.lines.get("embedding")])]
    return parts


def _inputs(request: Computation) -> list[str]:
    lines = [f"tokens = {_literal(request.tokens)}"]
    options = ", ".join(f"{name}={_literal(x)}" for name, x in request.options.items())
    lines.append(f"options = dict({options})")
    return lines + ([] if request.weights is None else [f"weights = {_literal(request.weights)}"])


def _literal(x: np.ndarray) -> str:
    dtype = {"bool": "bool", "int32": "np.int32", "float32": "np.float32", "float64": "float"}[str(x.dtype)]
    return f"np.array({x.tolist()}, {dtype})"
