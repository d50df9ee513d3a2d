"""Attention weights of a whole encoder, some rows at a time, without an array of T x T."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks
from attendax.inspection import weights_at
from attendax.params import EncoderParams

from .config import EncoderConfig
from .encoder import encode
from .inputs import check_params
from .layer import Call, attention_options, heads, layer, normalised
from .pieces import InJax
from .stack import unstacked


def attention_rows(params: EncoderParams, x: Any, *, config: EncoderConfig) -> Callable[[int, int, int], np.ndarray]:
    """A function that gives the attention weights of some queries of one text.

    Layers are computed when they are asked for, from the last one on; one is kept. ``figures.attention_page`` asks for
    them in order. ``layer_attention`` gives all weights of a layer at once.

    Args:
        params: the weights.
        x: token ids (1, T).
        config: sizes and options; those of ``params``.

    Returns:
        ``rows(layer, start, stop)`` -> weights (N, stop - start, T), NumPy; each row sums to 1.

    Raises:
        TypeError, ValueError: what ``encode`` refuses, or several texts.

    Example:
        >>> from attendax.encoders import init_encoder
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> rows = attention_rows(init_encoder(jax.random.key(0), config), np.array([[3, 1, 4]]), config=config)
        >>> rows(1, 0, 2).shape
        (3, 2, 3)
    """
    check_params(params, config, "attention_rows")
    blocks = unstacked(params.blocks)
    none = dataclasses.replace(config, num_layers=0, final_norm=False, window=None, rope_theta=1.0)
    start = encode(params._replace(blocks=(), gamma=None, beta=None), x, config=none)
    if x.shape[0] != 1:
        checks.fail(ValueError, "attention_rows", f"x has B={x.shape[0]} texts, expected 1.")
    reached, hidden, pair = -1, start, (start, start)

    def rows(number: int, begin: int, end: int) -> np.ndarray:
        nonlocal reached, hidden, pair
        checks.integer("attention_rows", "layer", number, minimum=0, maximum=config.num_layers - 1)
        if number < reached:
            reached, hidden = -1, start
        while reached < number:
            reached += 1
            settings = {"window": config.windows[reached], "theta": config.thetas[reached]}
            *pair, hidden = _through_one(blocks[reached], hidden, config=config, **settings)
        queries = jnp.arange(begin, end)
        return np.asarray(_rows_of(*pair, queries, config=config, window=config.windows[number])[0])

    return rows


@partial(jax.jit, static_argnames=("config", "window", "theta"))
def _through_one(block: Any, hidden: Any, *, config: EncoderConfig, window: int | None, theta: Any) -> Any:
    """Queries and keys of a layer, and what comes out of it."""
    call = Call(config, InJax(), None, None, None)
    tokens = normalised(call, hidden, block.gamma1, block.beta1) if config.norm == "pre" else hidden
    query, key, _ = heads(call, block, tokens, theta)
    return query, key, layer(call, block, hidden, 0, window, theta)


@partial(jax.jit, static_argnames=("config", "window"))
def _rows_of(query: Any, key: Any, queries: Any, *, config: EncoderConfig, window: int | None) -> Any:
    options = attention_options(Call(config, InJax(), None, None, None), window, key.shape[2])
    return weights_at(query, key, queries=queries, **options)
