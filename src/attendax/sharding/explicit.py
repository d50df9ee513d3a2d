"""Layers on meshes with Explicit axes: they run over Auto axes, where XLA divides all but the tokens."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
from jax import Array

from attendax.params import MultiHeadParams

from .division import DIVISION, Division
from .layout import Axes, explicit_axes, spec_of

Function = TypeVar("Function", bound=Callable[..., Any])


def over_auto_axes(function: Function) -> Function:
    """Decorate a layer, a function of ``params`` and x, ...: where arrays lie on Explicit axes, it runs over Auto axes.

    Its results lie as x does: divided by the batch, and (B, T, M) also by the tokens. Where tokens are divided, its
    attention goes from device to device, see ``sharding.attention``.
    """
    names = [name for name, x in inspect.signature(function).parameters.items() if x.kind is x.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # as the layer takes them
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [k for k, x in enumerate(leaves) if isinstance(x, jax.Array)]
        if not any(any(_axes_of(leaves[k])) for k in places):
            return function(*args, **kwargs)

        def inside(*arrays: Array) -> Any:
            found = dict(zip(places, arrays, strict=True))
            args, kwargs = jax.tree.unflatten(tree, [found.get(k, x) for k, x in enumerate(leaves)])
            return function(*args, **kwargs)

        def by_division(*arrays: Array) -> Any:
            with DIVISION(division):
                return inside(*arrays)

        arrays, given = [leaves[k] for k in places], dict(zip(names, args, strict=False)) | kwargs
        inputs = [given.get(name) for name in names if name != "params"]
        entries, division = _axes_of(inputs[0]), _division(given["params"], *inputs)
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            shapes = jax.eval_shape(inside, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays))
        out = jax.tree.map(lambda x: spec_of(*[*entries[: 2 if x.ndim == 3 else 1], *[()] * x.ndim][: x.ndim]), shapes)
        here = jax.sharding.get_abstract_mesh()
        divided = jax.sharding.auto_axes(by_division, axes=here.explicit_axes, out_sharding=out)
        if here.manual_axes:  # of a shard_map around: JAX can keep no numbers () over Auto axes for its gradient
            divided = jax.checkpoint(divided)
        if division is not None:  # JAX cannot map an axis of a shard_map inside ``auto_axes`` outside jit
            divided = jax.jit(divided)
        return divided(*arrays)

    return cast(Function, call)


def _division(params: NamedTuple, queries: Array | None, keys: Array | None = None, *_: object) -> Division | None:
    """The division of a layer's attention if the tokens of its queries are divided; heads lie as the weights do."""
    batch, tokens = [*_axes_of(queries), (), ()][:2]
    if not tokens:
        return None  # XLA divides batches and heads by itself
    of_keys = tokens if keys is None else [*_axes_of(keys), (), ()][1]
    weights = (x for x in jax.tree.leaves(params, is_leaf=_is_multi_head) if _is_multi_head(x))
    heads = ([(), *_axes_of(each.W_Q)][-1] for each in weights)
    return Division(None, batch, next(heads, ()), tokens, of_keys if of_keys == tokens else ())


def _is_multi_head(x: object) -> bool:
    return isinstance(x, MultiHeadParams)


def _axes_of(x: object) -> list[Axes]:
    """The Explicit mesh axes that divide each axis; nothing of what is not of JAX."""
    return explicit_axes(x) if isinstance(x, jax.Array) else []
