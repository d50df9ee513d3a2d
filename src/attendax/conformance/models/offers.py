"""Offers of adapters: a model as a function, others that have to equal it, and facts that it says of itself."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


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
