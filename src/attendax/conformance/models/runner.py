"""A model in this process: the one place where it is run."""

import contextlib
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ..adapters.source import import_line
from ..worker.errors import Failed
from .adapters import Offer
from .request import Request, direction, vectors

MADE_BY = ("in_jax", "in_torch", "in_numpy")


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
        cache: functions ``(init, step)`` or ``(init, step, reorder)``.
        ways: keywords that change nothing, by name.
    """

    def __init__(
        self,
        offer: Offer,
        target: Any,
        arrays: str,
        eager: bool,
        width: int | None,
        cache: Any,
        ways: Mapping[str, Any],
    ) -> None:
        self.offer, self.target, self.eager, self.cache = offer, target, eager, cache
        self.library = library(arrays)
        self.table = None if width is None else vectors(width)
        self.keywords = ways

    @property
    def ways(self) -> tuple[str, ...]:
        """The names of all ways of running."""
        of_library = {} if self.eager else self.library.WAYS
        return *of_library, *self.offer.ways, *self.keywords

    @property
    def gradient(self) -> str:
        """Why there is no gradient; empty where there is one."""
        if not hasattr(self.library, "gradient"):
            return "no gradient of NumPy"
        if self.table is None and self.offer.embedding is None:
            return "tokens have no gradient; a model of vectors has"
        return ""

    def run(self, request: Request) -> np.ndarray:
        """Results (B, T, C), or the gradient (B, T, M), as a copy.

        Raises:
            NotImplementedError: the model says that it has nothing of the kind.
            Failed: it raised.
        """
        try:
            with self._quiet():
                return self._checked(request, self.library.to_numpy(self._run(request)))
        except (NotImplementedError, Failed):
            raise
        except (Exception, SystemExit) as error:
            raise Failed.by(error) from error

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield

    def _run(self, request: Request) -> Any:
        inputs = request.tokens if self.table is None else self.table[request.tokens]
        options = dict(request.options)
        if request.chunks:
            return self.library.steps(self.cache, inputs, options, request.chunks, request.room, request.order)
        function, apply = self.called(request.way)
        if request.weights is None:
            return getattr(self.library, function)(apply, inputs, options)
        width = self.run(request._replace(weights=None)).shape[-1]
        cotangent = request.weights[:, :, None] * direction(width)
        if self.offer.embedding is None or self.table is not None:
            return self.library.gradient(apply, inputs, options, cotangent)
        embedding = self.offer.embedding(self.target)
        return self.library.gradient(apply, inputs, options, cotangent, embedding)

    def called(self, way: str) -> tuple[str, Callable[..., Any]]:
        """The function of the library that runs a way, and the model as it is given to it."""
        plain = "eager" if self.eager else "forward"
        if way in self.offer.ways:
            return plain, self.offer.ways[way]
        if way in self.keywords:
            return plain, self._with(way)
        return self.library.WAYS[way] if way else plain, self.offer.apply

    @functools.lru_cache  # noqa: B019  # JAX compiles anew for a function that is new
    def _with(self, way: str) -> Callable[..., Any]:
        return functools.partial(self.offer.apply, **self.keywords[way])

    def _checked(self, request: Request, found: np.ndarray) -> np.ndarray:
        if found.shape[:2] != request.tokens.shape or found.dtype.kind not in "fVi":
            said = f"gives {found.dtype} of shape {found.shape} for inputs {request.tokens.shape}"
            raise Failed(f"{said}, expected numbers of shape (B, T, ...)")
        return found if found.dtype in (np.float64, np.float16) else found.astype(np.float32)

    def lines(self, path: str | None) -> dict[str, str]:
        """Python that makes the model, its cache and its ways, and the functions that run it; by name."""
        made = self.offer.made
        if made is None:
            text = import_line(self.target, path, "apply")
        else:
            lines = [
                import_line(self.target, path, "model"),
                inspect.getsource(made),
                f"apply = {made.__name__}({', '.join(['model', *map(repr, self.offer.given)])})",
            ]
            text = "\n".join(["import inspect", *lines])
        found = {"model": text}
        if self.offer.embedding is not None and self.table is None:
            name = self.offer.embedding.__name__
            found["embedding"] = f"{inspect.getsource(self.offer.embedding)}\nembedding = {name}(model)"
        names = ("init", "step", "reorder")
        if self.cache:
            of_ours = getattr(self.cache[1], "__module__", "") == f"{__package__}.adapters"
            if not of_ours and not any(getattr(f, "__closure__", None) for f in self.cache):
                parts = [import_line(f, None, name) for f, name in zip(self.cache, names, strict=False)]
                found["cache"] = "\n".join([*parts, f"cache = {', '.join(names[: len(self.cache)])}"])
        for name, function in vars(self.library).items():
            function = inspect.unwrap(function) if callable(function) else None
            if inspect.isfunction(function) and function.__module__ == self.library.__name__:
                found[f"def {name}"] = inspect.getsource(function).rstrip()
        return found | {"header": self.library.HEADER}
