"""A model in this process: as its adapter offers it, and the one place where it is run."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..frameworks import framework
from ..frameworks.shared import per_position
from ..frameworks.text import defined, import_line
from ..worker.errors import Failed
from .blackbox import Request, direction, vectors, weights_of

EMBEDDED = "gradient_of_embedded"


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


class Runner:
    """A model, as its adapter offers it, and how it is run: with arrays of a framework, ``eager`` where not compiled.

    The width is of vectors, None for tokens; ``said`` has ``cache``, ``ways`` and ``heads`` of ``check_model``.
    """

    def __init__(
        self, offer: Offer, target: Any, arrays: str, eager: bool, width: int | None, said: Mapping[str, Any]
    ) -> None:
        self.offer, self.target, self.eager, self.arrays = offer, target, eager, arrays
        self.driver = framework(arrays)
        self.table = None if width is None else vectors(width)
        self.cache, self.keywords = said.get("cache"), said.get("ways") or {}
        self.heads = said.get("heads") or offer.heads
        of_driver = {name: Way(None, (), (), *of) for name, of in self.driver.WAYS.items() if not eager}
        self._ways = {"": Way()} | of_driver | dict(offer.ways) | {name: Way() for name in self.keywords}

        # the names of all ways, and what is asked of each
        asked = {name: {"results": way.forward, "gradient": way.gradient} for name, way in self._ways.items() if name}
        self.ways = {name: tuple(what for what, by in of.items() if by is not None) for name, of in asked.items()}

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights of a layer of attention; raises NotImplementedError where it is not attention of these alone."""
        return weights_of(self.heads(self.target))

    @property
    def gradient(self) -> str:
        """A reason why there is no gradient; empty where there is one."""
        if self.arrays == "numpy":
            return "no gradient of NumPy"
        if self.table is None and self.offer.embedding is None:
            return "tokens have no gradient; a model of vectors has"
        return ""

    def run(self, request: Request) -> np.ndarray:
        """Results (B, T, C), the gradient (B, T, M), or a weight, as a copy."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if request.read:
                    return self.weights.get(request.read, np.zeros(0))
                found = np.array(self._run(request))
        except (NotImplementedError, Failed):
            raise
        except (Exception, SystemExit) as error:
            raise Failed.by(error) from error
        if found.shape[:2] != request.tokens.shape or found.dtype.kind not in "fVi":
            said = f"gives {found.dtype} of shape {found.shape} for inputs {request.tokens.shape}"
            raise Failed(f"{said}, expected numbers of shape (B, T, ...)")
        return found if found.dtype in (np.float64, np.float16) else found.astype(np.float32)

    def _run(self, request: Request) -> Any:
        inputs = request.tokens if self.table is None else self.table[request.tokens]
        arrays, options, driver = {"query": inputs}, dict(request.options), self.driver
        if request.chunks:
            return driver.in_steps(self.cache, inputs, options, request.chunks, request.room, request.order)["out"]
        model, attend = self._made(request.way)
        run = self.function(request.way, "results" if request.weights is None else "gradient")
        if request.weights is None:
            return getattr(driver, run)(attend, arrays, options)["out"]
        width = self.run(request._replace(weights=None, way="")).shape[-1]
        cotangents = {"out": request.weights[:, :, None] * direction(width)}
        embedding = (self.offer.embedding(model),) if run == EMBEDDED else ()
        return getattr(driver, run)(attend, arrays, options, cotangents, *embedding)["grad query"]

    def function(self, way: str, asked: str) -> str:
        """The function of the driver that runs a way: for its results, or the gradient."""
        if asked == "results":
            return self._ways[way].forward or ("eager" if self.eager else "forward")
        return EMBEDDED if self.table is None and self.offer.embedding else "gradient"

    @functools.lru_cache  # noqa: B019  # JAX compiles anew for a function that is new
    def _made(self, name: str) -> tuple[Any, Callable[..., Any]]:
        """The model that is run in a way, and as a function for the driver."""
        way, model, apply = self._ways[name], self.target, self.offer.apply
        if name in self.keywords:
            apply = functools.partial(apply, **self.keywords[name])
        if way.of is not None and self.offer.made is not None:
            model = way.of(model, *way.args)
            apply = self.offer.made(model, *self.offer.given, *way.more)
        return model, per_position(getattr(self.driver, way.around)(apply) if way.around else apply)

    def lines(self, path: str | None) -> dict[str, str]:
        """Python that makes the model, its cache and its ways, and the functions that run it; by name."""
        offer = self.offer
        if offer.made is None:
            found = {"model": import_line(self.target, path, "apply")}
        else:
            parts = [import_line(self.target, path, "model"), defined(offer.made), _call(offer.made, offer.given)]
            found = {"model": "\n".join(parts)}
        for name, way in self._ways.items():
            apply = "apply"
            if name in self.keywords:
                apply, partial = "of_way", f"functools.partial(apply, **{self.keywords[name]!r})"
                found[f"made {name}"] = f"import functools\n\nof_way = {partial}"
            elif way.of is not None and offer.made is not None:
                apply, given = "of_way", (*offer.given, *way.more)
                parts = [defined(way.of), _call(way.of, way.args, made="model_of_way")]
                found[f"made {name}"] = "\n".join([*parts, _call(offer.made, given, "model_of_way", apply)])
            apply = f"{way.around}({apply})" if way.around else apply
            found[f"way {name}"] = f"{self.function(name, 'results')} {apply}"
            found[f"gradient of {name}"] = f"{self.function(name, 'gradient')} {apply}"
        if offer.embedding is not None and self.table is None:
            name = offer.embedding.__name__
            found["embedding"] = f"{inspect.getsource(offer.embedding)}\nembedding = {name}"
        of_ours = self.cache and getattr(self.cache[1], "__module__", "") == f"{__package__}.of_torch"
        if self.cache and not of_ours and not any(getattr(f, "__closure__", None) for f in self.cache):
            named = dict(zip(("init", "step", "reorder"), self.cache, strict=False))
            parts = [import_line(f, None, name) for name, f in named.items()]
            found["cache"] = "\n".join([*parts, f"cache = {', '.join(named)}"])
        return found


def _call(function: Callable[..., Any], given: tuple[Any, ...], first: str = "model", made: str = "apply") -> str:
    return f"{made} = {function.__name__}({', '.join([first, *map(repr, given)])})"
