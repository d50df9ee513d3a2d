"""Score modifiers as nested tuples, as ``attention`` takes them; ``reference`` says what they mean."""

from typing import Any

import jax.numpy as jnp

from attendax import scores


def _bent(scores: Any, positions: Any, strengths: Any) -> Any:
    return scores + jnp.asarray(strengths)[positions[0]] * jnp.tanh(scores)


def build(modifier: Any, arrays: list[Any]) -> Any:
    """The value from ``attendax.scores``; uses up ``arrays``."""
    kind, *settings = modifier
    if kind == "compose":
        return scores.compose(*(build(part, arrays) for part in settings))
    if kind == "softcap":
        return scores.softcap(*settings)
    array = arrays.pop(0)
    if kind == "alibi":
        return scores.alibi(array, offset=settings[0])
    if kind == "relative":
        return scores.relative_bias(array, offset=settings[1])
    if settings[0]:  # the function closes over its array
        return scores.from_function(lambda s, positions: _bent(s, positions, array))
    return scores.from_function(_bent, array)
