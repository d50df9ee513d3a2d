"""Attention weights of a whole encoder: all of a layer, or some rows at a time, without an array of T x T."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks, spec
from attendax.checks import knows_keywords
from attendax.inspection import weights_at
from attendax.params import EncoderParams

from .config import EncoderConfig
from .encoder import encode, mask_of_layers
from .inputs import check_params, in_numpy
from .layer import EncoderCall, attention_options, heads, layer, normalised
from .pieces import InJax, InNumpy
from .stack import unstacked


@knows_keywords
def layer_attention(
    x: Any, params: EncoderParams, *, config: EncoderConfig, layer: int, mask: Any = None
) -> np.ndarray:
    """The attention weights of one layer: how much each token (row) takes from each other token (column).

    It is computed by the specification, which has the weights; the fast side never builds them. For one sentence that
    takes less time than compiling.

    Args:
        x: token ids (B, T).
        params: the weights, NumPy or JAX.
        config: the sizes and options of ``params``.
        layer: index of the layer, from 0.
        mask: padding, (B, T) boolean, True = a real token.

    Returns:
        Weights (B, N, T, T), NumPy; each row sums to 1.

    Raises:
        TypeError: an array is traced, or as ``encode``.
        ValueError: the layer does not exist, or as ``encode``.
    """
    checks.arrays_first("layer_attention", {"x": x}, "params", params)
    if checks.integer("layer_attention", "layer", layer, minimum=0) >= config.num_layers:
        facts = f"layer={layer} but the encoder has layers 0 to {config.num_layers - 1}."
        checks.fail(ValueError, "layer_attention", facts)
    check_params(params, config, "layer_attention")
    params, x, mask = in_numpy("layer_attention", (params, x, mask))
    hidden, call = _below(params, x, config=config, layer=layer, mask=mask)
    query, key, value = heads(call, unstacked(params.blocks)[layer], hidden, config.thetas[layer])
    options = attention_options(call, config.windows[layer], x.shape[1])
    return spec.attention_with_weights(query, key, value, **options)[2]


def _below(
    params: EncoderParams, x: Any, *, config: EncoderConfig, layer: int, mask: Any = None
) -> tuple[Any, EncoderCall]:
    """The input of a layer's attention, in NumPy: its tokens (B, T, M), normalised if the norm comes first."""
    blocks = unstacked(params.blocks)
    by_layer = {name: getattr(config, name) for name in ("window", "rope_theta")}
    cut: dict[str, Any] = {name: given[:layer] for name, given in by_layer.items() if type(given) is tuple}
    shorter = dataclasses.replace(config, num_layers=layer, final_norm=False, **cut)
    weights = params._replace(blocks=tuple(blocks[:layer]), gamma=None, beta=None)
    hidden = encode(x, weights, config=shorter, mask=mask, twin=spec)
    call = EncoderCall(config, InNumpy(), mask_of_layers(mask, None, np), None, None)
    if config.norm == "pre":
        hidden = normalised(call, hidden, blocks[layer].gamma1, blocks[layer].beta1)
    return hidden, call


@knows_keywords
def attention_rows(x: Any, params: EncoderParams, *, config: EncoderConfig) -> Callable[[int, int, int], np.ndarray]:
    """A function that gives the attention weights of some queries of one text.

    A layer is computed when its rows are requested, starting from the last computed layer; one layer is kept.
    ``layer_attention`` gives all weights of a layer at once.

    Args:
        x: token ids (1, T).
        params: the weights.
        config: the sizes and options of ``params``.

    Returns:
        ``rows(layer, start, stop)`` -> weights (N, stop - start, T), NumPy; each row sums to 1.

    Raises:
        TypeError, ValueError: as ``encode``, or there are several texts.

    Example:
        >>> from attendax.encoders import init_encoder
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> rows = attention_rows(np.array([[3, 1, 4]]), init_encoder(jax.random.key(0), config), config=config)
        >>> rows(1, 0, 2).shape
        (3, 2, 3)
    """
    checks.arrays_first("attention_rows", {"x": x}, "params", params)
    check_params(params, config, "attention_rows")
    blocks = unstacked(params.blocks)
    none = dataclasses.replace(config, num_layers=0, final_norm=False, window=None, rope_theta=1.0)
    start = encode(x, params._replace(blocks=(), gamma=None, beta=None), config=none)
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
    call = EncoderCall(config, InJax(), None, None, None)
    tokens = normalised(call, hidden, block.gamma1, block.beta1) if config.norm == "pre" else hidden
    query, key, _ = heads(call, block, tokens, theta)
    return query, key, layer(call, block, hidden, 0, window, theta)


@partial(jax.jit, static_argnames=("config", "window"))
def _rows_of(query: Any, key: Any, queries: Any, *, config: EncoderConfig, window: int | None) -> Any:
    options = attention_options(EncoderCall(config, InJax(), None, None, None), window, key.shape[2])
    return weights_at(query, key, queries=queries, **options)
