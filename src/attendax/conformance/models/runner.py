"""A model in this process: as its adapter offers it, and the one place where it is run."""

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..adapters.source import import_line, text_of
from ..worker.errors import Failed
from .blackbox import Request, direction, vectors
from .weights import checked

MADE_BY = ("in_jax", "in_torch", "in_numpy")


class Way(NamedTuple):
    """Another way of running a model.

    Attributes:
        of, args: what makes of the model the one that is run, by the same adapter, and its other arguments.
        more: further arguments of the adapter.
        forward, gradient: the functions of the library that run it; "" the plain ones, None what is not asked.
    """

    of: Callable[..., Any]
    args: tuple[Any, ...] = ()
    more: tuple[Any, ...] = ()
    forward: str | None = ""
    gradient: str | None = ""


class Offer(NamedTuple):
    """A model as its adapter offers it.

    Attributes:
        apply: from inputs and keywords to results.
        arrays: of which framework.
        made, given: the function that made ``apply`` of the model, if any did, and what else it was given.
        facts: what the model says of itself, under the names of ``check_model``.
        ways: others of running it, which have to give the same.
        embedding: of a torch module, gives what turns tokens into vectors.
        heads: of a layer of attention, gives its weights (``weights.py``).
        otherwise: what is offered where the plainest call of this one fails.
    """

    apply: Callable[..., Any]
    arrays: str | None = None
    made: Callable[..., Any] | None = None
    facts: Mapping[str, Any] = {}
    ways: Mapping[str, Way] = {}
    embedding: Any = None
    given: tuple[Any, ...] = ()
    heads: Any = None
    otherwise: "Offer | None" = None


def with_seed(signature):
    """The signature with a keyword ``seed``."""
    kept = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD and x.name != "seed"]
    return inspect.Signature([*kept, inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=None)])


def library(arrays: str) -> ModuleType:
    """The module that runs models of a framework.

    Raises:
        ValueError: there is none of that name.
        ModuleNotFoundError: the framework is not installed.
    """
    if f"in_{arrays}" not in MADE_BY:
        raise ValueError(f"check_model: arrays got {arrays!r}, expected jax, torch or numpy")
    return importlib.import_module(f"{__package__}.libraries.in_{arrays}")


class Runner:
    """A model, and how it is run.

    Args:
        offer: of its adapter.
        target: the model itself.
        arrays: "jax", "torch" or "numpy".
        eager: whether JAX may not compile it.
        width: of vectors; None for tokens.
        said: ``cache``, ``ways`` and ``heads`` of ``check_model``; ``heads`` is that of the offer unless given.
    """

    def __init__(
        self, offer: Offer, target: Any, arrays: str, eager: bool, width: int | None, said: Mapping[str, Any]
    ) -> None:
        self.offer, self.target, self.eager = offer, target, eager
        self.library = library(arrays)
        self.table = None if width is None else vectors(width)
        self.cache, self.keywords = said.get("cache"), said.get("ways") or {}
        self.heads = said.get("heads") or offer.heads
        of_library = {name: Way(_itself, (), (), *of) for name, of in self.library.WAYS.items() if not eager}
        self._ways = of_library | dict(offer.ways) | {name: Way(_itself) for name in self.keywords}

    @property
    def ways(self) -> dict[str, tuple[str, ...]]:
        """The names of all ways of running, and what is asked of each."""
        asked = {name: {"results": way.forward, "gradient": way.gradient} for name, way in self._ways.items()}
        return {name: tuple(what for what, by in of.items() if by is not None) for name, of in asked.items()}

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights of a layer of attention.

        Raises:
            NotImplementedError: it is not attention of its weights alone.
            ValueError: the function ``heads`` gives something else.
        """
        return checked(self.heads(self.target))

    @property
    def gradient(self) -> str:
        """A reason why there is no gradient; empty where there is one."""
        if not hasattr(self.library, "gradient"):
            return "no gradient of NumPy"
        if self.table is None and self.offer.embedding is None:
            return "tokens have no gradient; a model of vectors has"
        return ""

    def run(self, request: Request) -> np.ndarray:
        """Results (B, T, C), the gradient (B, T, M), or a weight, as a copy.

        Raises:
            NotImplementedError: the model says that it has nothing of the kind.
            Failed: it raised.
        """
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if request.read:
                    return self.weights.get(request.read, np.zeros(0))
                found = self.library.to_numpy(self._run(request))
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
        options = dict(request.options)
        if request.chunks:
            return self.library.steps(self.cache, inputs, options, request.chunks, request.room, request.order)
        model, apply = self._made(request.way)
        call = getattr(self.library, self.function(request.way, "results" if request.weights is None else "gradient"))
        if request.weights is None:
            return call(apply, inputs, options)
        width = self.run(request._replace(weights=None, way="")).shape[-1]
        cotangent = request.weights[:, :, None] * direction(width)
        if self.offer.embedding is None or self.table is not None:
            return call(apply, inputs, options, cotangent)
        return call(apply, inputs, options, cotangent, self.offer.embedding(model))

    def function(self, way: str, asked: str) -> str:
        """The function of the library that runs a way: for its results, or the gradient."""
        known = self._ways.get(way)
        if asked == "gradient":
            return (known and known.gradient) or "gradient"
        return (known and known.forward) or ("eager" if self.eager else "forward")

    @functools.lru_cache  # noqa: B019  # JAX compiles anew for a function that is new
    def _made(self, name: str) -> tuple[Any, Callable[..., Any]]:
        """The model that is run in a way, and as a function."""
        if name in self.keywords:
            return self.target, functools.partial(self.offer.apply, **self.keywords[name])
        way = self.offer.ways.get(name)
        if way is None or self.offer.made is None:
            return self.target, self.offer.apply
        model = way.of(self.target, *way.args)
        return model, self.offer.made(model, *self.offer.given, *way.more)

    def lines(self, path: str | None) -> dict[str, str]:
        """Python that makes the model, its cache and its ways, and the functions that run it; by name."""
        made = self.offer.made
        if made is None:
            text = import_line(self.target, path, "apply")
        else:
            lines = [import_line(self.target, path, "model"), text_of(made)]
            text = "\n".join([*lines, _call(made, "model", self.offer.given, "apply")])
        found = {"model": text} | self._lines_of_ways()
        if self.offer.embedding is not None and self.table is None:
            name = self.offer.embedding.__name__
            found["embedding"] = f"{inspect.getsource(self.offer.embedding)}\nembedding = {name}"
        if self.cache:
            names = ("init", "step", "reorder")
            of_ours = getattr(self.cache[1], "__module__", "") == f"{__package__}.of_torch"
            if not of_ours and not any(getattr(f, "__closure__", None) for f in self.cache):
                parts = [import_line(f, None, name) for f, name in zip(self.cache, names, strict=False)]
                found["cache"] = "\n".join([*parts, f"cache = {', '.join(names[: len(self.cache)])}"])
        for name, function in vars(self.library).items():
            function = inspect.unwrap(function) if callable(function) else None
            if inspect.isfunction(function) and function.__module__ == self.library.__name__:
                found[f"def {name}"] = inspect.getsource(function).rstrip()
        return found | {"header": self.library.HEADER}

    def _lines_of_ways(self) -> dict[str, str]:
        """Lines of each way: the functions that run it, the name of the model, and Python that makes another model."""
        plain = f"{self.function('', 'results')} apply"
        found = {"way ": plain, "gradient of ": "gradient apply"}
        for name in self.ways:
            given = f"partial(apply, **{dict(self.keywords[name])!r})" if name in self.keywords else "apply"
            way = self.offer.ways.get(name)
            if way is not None and self.offer.made is not None:
                given = "of_way"
                found[f"made {name}"] = "\n".join([
                    text_of(way.of),
                    _call(way.of, "model", way.args, "model_of_way"),
                    _call(self.offer.made, "model_of_way", (*self.offer.given, *way.more), given),
                ])  # fmt: skip
            found[f"way {name}"] = f"{self.function(name, 'results')} {given}"
            found[f"gradient of {name}"] = f"{self.function(name, 'gradient')} {given}"
        return found


def _itself(model: Any) -> Any:
    return model


def _call(function: Callable[..., Any], first: str, given: tuple[Any, ...], name: str) -> str:
    return f"{name} = {function.__name__}({', '.join([first, *map(repr, given)])})"
