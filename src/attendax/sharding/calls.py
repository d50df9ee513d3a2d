"""Attention over a sequence that several devices share: the public functions."""

import functools
from collections.abc import Callable
from typing import Any, Literal, Required, TypeVar, Unpack, cast, overload

import jax
from jax import Array

from attendax.checks import fail, one_of
from attendax.kernels.call import as_asked, checked_call
from attendax.kernels.operands import public
from attendax.masks import ArrayLike
from attendax.options import ResultOptions

from .division import DIVISION, Division, attend_by_division
from .in_shard_map import PositionsLike, attend_from_shards, checked_positions
from .layout import Mesh, names_in
from .strategy import STRATEGIES

Axes = str | tuple[str, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


class Across(ResultOptions, total=False):
    """The options of a call that goes from device to device."""

    axis_name: Required[Axes]
    positions: PositionsLike | None
    strategy: str | None


class OnMesh(Across, total=False):
    """The options of a call of whole arrays on a mesh."""

    mesh: Required[Mesh]
    batch_axes: Axes
    head_axes: Axes


@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[False] = ..., **rest: Unpack[Across]
) -> Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[True], **rest: Unpack[Across]
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: bool, **rest: Unpack[Across]
) -> Array | tuple[Array, Array]: ...
@public
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    axis_name: Axes,
    positions: PositionsLike | None = None,
    strategy: str | None = None,
    return_lse: bool = False,
    **options: Unpack[ResultOptions],
) -> Array | tuple[Array, Array]:
    """``attendax.attention`` inside ``shard_map``, over the keys of all devices of a mesh axis.

    Each device brings its part of the tokens and gets the results of its own queries; every direction of
    differentiation works (L12), and so does every law. Masks, modifiers and dropout speak of original positions.

    Args:
        query: (..., N, T / n, D), the queries of this device, of n along the axis.
        key: (..., G, S / n, D).
        value: (..., G, S / n, V).
        axis_name: the mesh axis that divides the tokens, or several.
        positions: integers (T / n,), where the tokens of this device stand in the whole sequence; a pair of those of
            queries and of keys; or None: the devices hold the sequence in order. See ``sharding.positions``.
        strategy: "ring": keys travel from device to device; "all_gather": all keys come to each device; "ulysses":
            each device exchanges its tokens of most heads for all tokens of a few; None: see
            ``sharding.explain``.
        mask: as in ``attention``. Ids of segments are those of the device's own tokens. A dense mask has the rows of
            its own queries and the columns of all keys, in the order in which the devices hold them.
        bias: likewise, of its own queries and all keys.
        score_mod, scale: as in ``attention``; a function reads the positions of the whole sequence.
        dropout_rate, dropout_rng: as in ``attention``: what is kept does not depend on the number of devices.
        return_lse: whether to return the log-sum-exp also (L9).

    Returns:
        out (..., N, T / n, V) in the dtype of ``query``; with ``return_lse`` also lse (..., N, T / n).

    Raises:
        TypeError, ValueError: as ``attention``, said of the arrays of all devices together; positions that do not fit;
            "ulysses" where n does not divide the heads.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from attendax import masks
        >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> tokens = jax.P(None, "seq")
        >>> attend = jax.shard_map(
        ...     lambda q, k, v: attention(q, k, v, axis_name="seq", mask=masks.causal()),
        ...     mesh=mesh, in_specs=(tokens, tokens, tokens), out_specs=tokens)
        >>> attend(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2, 3)), jnp.ones((1, 2, 4))).shape
        (1, 2, 4)
    """
    axis = _names("sharding.attention", axis_name)
    for name in axis:
        try:
            jax.lax.axis_size(name)
        except NameError:
            sentence = f"{name!r} is not an axis of a shard_map around this call."
            fail(ValueError, "sharding.attention", sentence, advice="Whole arrays go to sharding.attention_on_mesh.")
    results = attend_from_shards(query, key, value, axis, positions, strategy, return_lse=return_lse, **options)
    return as_asked(results, query, value, return_lse, options.get("score_mod"))


@overload
def attention_on_mesh(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[False] = ..., **rest: Unpack[OnMesh]
) -> Array: ...
@overload
def attention_on_mesh(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[True], **rest: Unpack[OnMesh]
) -> tuple[Array, Array]: ...
@overload
def attention_on_mesh(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: bool, **rest: Unpack[OnMesh]
) -> Array | tuple[Array, Array]: ...
@public
def attention_on_mesh(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mesh: Mesh,
    axis_name: Axes,
    batch_axes: Axes = (),
    head_axes: Axes = (),
    positions: PositionsLike | None = None,
    strategy: str | None = None,
    return_lse: bool = False,
    **options: Unpack[ResultOptions],
) -> Array | tuple[Array, Array]:
    """``attendax.attention`` of whole arrays, with the tokens divided over a mesh axis, and all else by XLA.

    For meshes with Auto axes, inside jit or out of it; on Explicit axes ``attendax.attention`` does so by itself.

    Args:
        query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng, return_lse: as in
            ``attendax.attention``; T and S must be multiples of the devices.
        mesh: a mesh that has the axes.
        axis_name: the mesh axis that divides the tokens, or several.
        batch_axes, head_axes: those that divide the first axis and the heads.
        positions, strategy: as in ``attention``, the positions of all tokens, (T,).

    Returns:
        As ``attendax.attention``.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``attention``; a number of tokens, batches or heads that is not a
            multiple of its devices.

    Example:
        >>> import jax
        >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> x = jax.numpy.ones((1, 2, 3))
        >>> attention_on_mesh(x, x, x, mesh=mesh, axis_name="seq").shape
        (1, 2, 3)
    """
    name = "sharding.attention_on_mesh"
    call = checked_call(name, query, key, value, return_lse=return_lse, traced=False, **options)
    division = _division(name, mesh, axis_name, batch_axes, head_axes, strategy)
    places = None
    if positions is not None:
        sizes = query.shape[-2], key.shape[-2]
        places = checked_positions(name, positions, sizes, "there are")
    results = attend_by_division(call, division, query.ndim, places)
    return as_asked(results, query, value, return_lse, options.get("score_mod"))


def on_mesh(
    function: Function,
    *,
    mesh: Mesh,
    axis_name: Axes,
    batch_axes: Axes = (),
    head_axes: Axes = (),
    strategy: str | None = None,
) -> Function:
    """``function`` with ``attention_on_mesh`` for every ``attention`` in it: layers of ``ops``, ``encoders.encode``.

    For meshes with Auto axes, inside jit or out of it; on Explicit axes layers do so by themselves.

    Args:
        function: calls ``attendax.attention`` with queries and keys that are both divided.
        mesh, axis_name, batch_axes, head_axes, strategy: as in ``attention_on_mesh``.

    Returns:
        The function.

    Raises:
        TypeError, ValueError, NotImplementedError: when it is called, as ``attention_on_mesh``.

    Example:
        >>> import jax
        >>> from attendax import ops
        >>> mesh = jax.make_mesh((1,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> block = on_mesh(ops.encoder_block, mesh=mesh, axis_name="seq")
        >>> params = ops.init_encoder_block(jax.random.key(0), 6, 2)
        >>> block(jax.numpy.ones((1, 3, 6)), params, num_heads=2).shape
        (1, 3, 6)
    """
    division = _division("sharding.on_mesh", mesh, axis_name, batch_axes, head_axes, strategy)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # as ``function`` takes them
        with DIVISION(division):
            return function(*args, **kwargs)

    return cast(Function, call)


def _division(
    name: str, mesh: Mesh, axis_name: Axes, batch_axes: Axes, head_axes: Axes, strategy: str | None
) -> Division:
    one_of(name, "strategy", strategy, (None, *STRATEGIES))
    if not hasattr(mesh, "axis_names"):
        sentence = f"mesh must be a mesh, got {type(mesh).__name__}."
        fail(TypeError, name, sentence, advice="Write mesh=jax.make_mesh(...).")
    tokens, batch, heads = (_axes(name, mesh, axes) for axes in (axis_name, batch_axes, head_axes))
    every = (*tokens, *batch, *heads)
    for axis in every:
        if every.count(axis) > 1:
            fail(ValueError, name, f"axis {axis!r} is named twice in axis_name, batch_axes and head_axes.")
    return Division(mesh, batch, heads, tokens, tokens, strategy, name)


def _axes(function: str, mesh: Mesh, axes: Axes) -> tuple[str, ...]:
    axes = _names(function, axes)
    for axis in axes:
        one_of(function, "axis", axis, tuple(mesh.axis_names))
    return axes


def _names(function: str, axes: object) -> tuple[str, ...]:
    if not isinstance(axes, str | tuple | list):
        fail(TypeError, function, f"an axis must be a name or a tuple of names, got {type(axes).__name__}.")
    return names_in(axes)
