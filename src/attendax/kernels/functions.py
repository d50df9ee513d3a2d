"""Functions of a user, in masks and score modifiers, as values that hold no state (L13, L17).

A function may close over arrays: a NumPy table, a slope that is being differentiated, the attributes of its object. So
each call traces it once, for a single pair (it works element by element). The arrays that it closes over become arrays
of the call like any other: they are read anew, get their gradients and are batched. A computation without arrays is
left. Functions with equal computations are equal: they share a compiled program, and keep no array alive.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

from attendax.mask_kinds import lifted
from attendax.mask_type import Mask
from attendax.scores import ScoreModifier

from .numerics import is_compiled
from .score_modifiers import modify


class Traced:
    """The computation of a function for one pair, from flat arguments; the last are the arrays it closed over."""

    def __init__(self, jaxpr: Jaxpr, wrap: Callable) -> None:
        self.jaxpr = jaxpr
        self.wrap = wrap
        self.key = wrap, _key(jaxpr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __call__(self, *arguments: Any) -> Any:  # scores (..., N, T, S) of a modifier; positions; its arrays
        """The function, on positions of a whole tile."""
        return self.wrap(self._on_pair, *arguments)

    def _on_pair(self, arrays: Sequence[Array], *pair: Array) -> Any:
        types: list[Any] = [v.aval for v in self.jaxpr.invars]
        typed = zip((*pair, *arrays), (t.dtype for t in types), strict=True)
        inputs = [x if x.dtype == dtype else x.astype(dtype) for x, dtype in typed]
        return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, []))(*inputs)[0]


def trace_mask(mask: Mask, T: int, S: int) -> Any:
    """The mask of T queries and S keys with its functions traced."""

    def trace(part):
        if part.kind != "function":
            return part
        jax.eval_shape(lambda i, j: part.allowed(i, j, jnp), _positions(T, 1), _positions(1, S))  # refuses other shapes
        return _trace(part, _on_tile, _positions(1, 1), _positions(1, 1))

    return mask.map(trace)


@partial(jax.jit, static_argnums=(1, 2, 3))
def evaluated(mask: Mask, rank: int, T: int, S: int) -> Any:
    """A mask whose traced functions are arrays of truth values (..., T, S), of the rank of the scores."""

    def evaluate(part):
        if part.kind != "function":
            return part
        found = part.allowed(jnp.arange(T)[:, None], jnp.arange(S)[None], jnp)
        found = jnp.broadcast_to(found, (*found.shape[:-2], T, S))
        return Mask("dense", (lifted(found, rank),))

    return mask.map(evaluate)


def trace_modifier(score_mod: ScoreModifier, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """The modifier of scores of a shape (..., N, T, S) with its functions traced."""
    if score_mod.kind == "compose":
        return score_mod.replace(tuple(trace_modifier(part, shape, dtype) for part in score_mod.arrays))
    if score_mod.kind != "function":
        return score_mod
    *lead, N, T, S = shape
    one = (1,) * len(lead)

    def given(T, S):
        positions = _positions(*one, N, 1, 1), _positions(*one, 1, T, 1), _positions(*one, 1, 1, S)
        return jax.ShapeDtypeStruct((*lead, N, T, S), dtype), positions

    jax.eval_shape(lambda scores, at: modify(score_mod, scores, at), *given(T, S))  # refuses other shapes
    return _trace(score_mod, _on_scores, *given(1, 1))


def _positions(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.arange(1).dtype)


def _trace(part: Any, wrap: Callable, *pair: Any) -> Any:  # Mask or ScoreModifier; what its function is given
    """A mask or modifier with its function traced for the types of one pair, and its arrays flat."""
    leaves, tree = jax.tree.flatten(part.arrays)
    leaves = [jnp.asarray(x) for x in leaves]

    def flat(*arguments):
        given = jax.tree.unflatten(jax.tree.structure(pair), arguments[: -len(leaves) or None])
        return part.settings[0](*given, *jax.tree.unflatten(tree, arguments[len(arguments) - len(leaves) :]))

    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    closed = jax.make_jaxpr(flat)(*jax.tree.leaves(pair), *types)
    jaxpr, others = _opened(closed, numbers=not is_compiled())
    return dataclasses.replace(part, arrays=(*leaves, *others), settings=(Traced(jaxpr, wrap),))


def _opened(closed: ClosedJaxpr, *, numbers: bool) -> tuple[Jaxpr, list[Array]]:
    """A computation with what it closes over as further arguments, and those; with its ``numbers`` among them or not.

    With them functions that differ in a number alone are one: ``lambda s, at: s * 0.1`` and ``lambda s, at: s * 0.2``.
    """
    inputs, others, eqns = [*closed.jaxpr.constvars], [*map(jnp.asarray, closed.consts)], []
    for eqn in closed.jaxpr.eqns:
        atoms: list[Any] = list(eqn.invars)
        for k, atom in enumerate(atoms):
            if numbers and isinstance(atom, Literal) and np.shape(atom.val) == ():
                number: Any = Var(atom.aval)
                atoms[k] = number
                inputs.append(number)
                others.append(jnp.asarray(atom.val, number.aval.dtype))
        eqns.append(eqn.replace(invars=atoms))
    return closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.invars, *inputs], eqns=eqns), others


def _on_tile(on_pair: Callable, i: Array, j: Array, *arrays: Array) -> Any:
    """A mask's function, for positions i (T, 1) and j (1, S): (..., T, S)."""

    def one(i, j):
        return on_pair(arrays, i.reshape(1, 1), j.reshape(1, 1))[..., 0, 0]

    return jax.vmap(jax.vmap(one, (None, 0), -1), (0, None), -2)(i.reshape(-1), j.reshape(-1))


def _on_scores(on_pair: Callable, scores: Array, positions: tuple[Array, ...], *arrays: Array) -> Any:
    """A modifier's function, for scores (..., N, T, S)."""
    n, i, j = positions

    def one(scores, i, j):
        return on_pair(arrays, scores, n, i, j)

    columns = jax.vmap(one, (-3, None, -3), -3)  # of scores (..., N, S, 1, 1) and j (..., 1, S, 1, 1)
    rows = jax.vmap(columns, (-4, -3, None), -4)
    return rows(scores[..., None, None], i[..., None], j[..., None, :, :].swapaxes(-1, -3))[..., 0, 0]


def _key(jaxpr: Jaxpr) -> Any:
    """A hashable key of a computation: equal only if the computations are."""
    numbers: dict[Any, int] = {}

    def name(atom):
        if isinstance(atom, Literal):
            return "literal", atom.aval, _of(np.asarray(atom.val))
        return numbers.setdefault(atom, len(numbers)), atom.aval

    inputs = tuple(map(name, (*jaxpr.constvars, *jaxpr.invars)))
    each = ((e.primitive, tuple(map(name, e.invars)), tuple(map(name, e.outvars)), _of(e.params)) for e in jaxpr.eqns)
    return inputs, tuple(each), tuple(map(name, jaxpr.outvars))


def _of(value: object) -> Any:
    """A parameter as a value that can be compared; what cannot is equal to nothing but itself."""
    if isinstance(value, Jaxpr):
        return _key(value)
    if isinstance(value, ClosedJaxpr):
        return _key(value.jaxpr), _of(value.consts)
    if isinstance(value, dict):
        return tuple((name, _of(x)) for name, x in sorted(value.items()))
    if isinstance(value, tuple | list):
        return tuple(map(_of, value))
    if isinstance(value, np.ndarray | float):  # by its bits: -0 is not 0
        return np.shape(value), str(np.asarray(value).dtype), np.asarray(value).tobytes()
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return type(value), value


class _Itself:
    def __init__(self, value: object) -> None:
        self.value = value  # kept alive, so that no other value gets its identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def has_function(value: Mask | ScoreModifier | None) -> bool:
    """Tell whether a mask or modifier, or a part of it, is a function of its user."""
    return value is not None and any(part.kind == "function" for part in value.parts())
