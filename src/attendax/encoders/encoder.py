"""A whole encoder: summed embeddings, then L layers.

It is written once for both twins: ``encode`` takes its pieces from ``ops`` (JAX) or from ``spec`` (NumPy). So the two
sides can differ only in the pieces, which are tested against each other.
"""

from types import ModuleType
from typing import Any, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from attendax import checks, masks, ops, spec
from attendax.checks import knows_keywords
from attendax.masks import ArrayLike
from attendax.ops.in_pieces import in_pieces
from attendax.params import EncoderParams
from attendax.sharding.explicit import over_auto_axes

from .config import EncoderConfig, encoder_shapes
from .inputs import check_inputs, check_params, in_numpy, operand_dtype
from .layer import EncoderCall, drop, layer, normalised
from .pieces import InJax, InNumpy
from .stack import LayerStack, unstacked

INIT_SCALE = 0.02  # standard deviation of the weights at the start (Devlin et al. 2019, their published code)
KEPT = ("attention_out", "attention_lse")  # what ``remat`` keeps of a layer besides its input


def init_encoder(rng: jax.Array, config: EncoderConfig) -> EncoderParams:
    """Draw the weights of an encoder: matrices and tables normal with deviation 0.02, biases 0, gammas 1; float32.

    Example:
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> init_encoder(jax.random.key(0), config).embeddings.token.shape
        (11, 6)
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(encoder_shapes(config))
    keys = jax.random.split(rng, len(leaves))
    drawn = (_init_leaf(path[-1].name, key, leaf) for (path, leaf), key in zip(leaves, keys, strict=True))
    return jax.tree.unflatten(structure, drawn)


def _init_leaf(name: str, rng: jax.Array, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if name.startswith("gamma"):
        return jnp.ones(leaf.shape, leaf.dtype)
    if name.startswith("b"):  # b_Q, b1, beta1, beta, ...
        return jnp.zeros(leaf.shape, leaf.dtype)
    return INIT_SCALE * jax.random.normal(rng, leaf.shape, leaf.dtype)


class EncodeOptions(TypedDict, total=False):
    """The options of ``encode`` beside ids and configuration."""

    mask: ArrayLike | None
    token_types: ArrayLike | None
    segments: ArrayLike | None
    dropout_rng: Any
    dtype: DTypeLike | None
    remat: bool


@overload
def encode(
    x: ArrayLike, params: EncoderParams, *, config: EncoderConfig, **inputs: Unpack[EncodeOptions]
) -> jax.Array: ...
@overload
def encode(
    x: ArrayLike, params: EncoderParams, *, config: EncoderConfig, twin: ModuleType, **inputs: Unpack[EncodeOptions]
) -> jax.Array | np.ndarray: ...
@knows_keywords
@over_auto_axes
def encode(
    x: ArrayLike,
    params: EncoderParams,
    *,
    config: EncoderConfig,
    mask: ArrayLike | None = None,
    token_types: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    dropout_rng: Any = None,
    dtype: DTypeLike | None = None,
    remat: bool = False,
    twin: ModuleType = ops,
) -> jax.Array | np.ndarray:
    """Turn token ids into hidden states, one vector for each token.

    h = Norm(token[x] + position[0..T-1] + token_type[token_types]); then h = layer(h) for each of the L layers (Devlin
    et al. 2019, section 3), and a last norm if the configuration has one. Pure; under ``jit``, ``config``,
    ``dtype``, ``remat`` and ``twin`` are static.

    Args:
        x: token ids (B, T), integer, T at most ``config.max_positions``.
        params: the weights. The computation has their dtype, except for ``dtype``.
        config: the sizes and options of ``params``.
        mask: padding, (B, T) boolean, True = a real token. It becomes (B, 1, 1, T): no query looks at a padded key.
            The hidden states at padded positions have no meaning.
        token_types: (B, T) integer; type 0 everywhere unless given (BERT's first segment).
        segments: (B, T) integer, for several texts in a row (packing): a token sees only tokens of its own number,
            and positions begin at 0 with every new number.
        dropout_rng: a random key. Without it there is no dropout, bit for bit as with a rate of 0.
        dtype: the dtype of the operands of products and attention, such as "bfloat16". Sums, norms and the result stay
            as wide as the weights.
        remat: in gradients, recompute each layer from its input, its attention's output and its lse.
        twin: the module of the layers: ``attendax.ops`` (JAX) or ``attendax.spec`` (NumPy arrays in and out).

    Returns:
        Hidden states (B, T, M).

    Raises:
        TypeError: the ids are not integers, or the mask is not boolean.
        ValueError: the weights do not fit ``config``, a rank or a size disagrees, T is above ``max_positions``, or an
            id lies outside its table. Under ``jit`` ids do not have values to check; there, an id outside the table
            gives NaN.
        NotImplementedError: ``dtype`` or ``remat`` in NumPy.

    Example:
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> params = init_encoder(jax.random.key(0), config)
        >>> encode(np.array([[3, 1, 4, 1, 5]]), params, config=config).shape
        (1, 5, 6)
    """
    if twin not in (ops, spec):
        checks.fail(TypeError, "encode", f"twin must be attendax.ops or attendax.spec, got {twin!r}.")
    checks.boolean("encode", "remat", remat)
    if twin is spec and (dtype is not None or remat):
        checks.fail(NotImplementedError, "encode", "dtype and remat are for JAX; NumPy computes by definition.")
    checks.arrays_first("encode", {"x": x}, "params", params)
    check_params(params, config)
    check_inputs(x, config, mask=mask, token_types=token_types, segments=segments)
    key_data = checks.key_data("encode", dropout_rng) if dropout_rng is not None and config.dropout else None
    if twin is spec:
        arrays = params, x, mask, token_types, segments, key_data
        params, x, mask, token_types, segments, key_data = in_numpy("encode with twin=spec", arrays)
    pieces: Any = InNumpy() if twin is spec else InJax(operand_dtype(dtype, params))
    positions = None if segments is None else _restarted(segments, pieces.xp)
    call = EncoderCall(config, pieces, None, None, key_data)
    hidden = drop(call, _embedded(call, params, x, token_types, positions), 0)

    def through_layers(hidden: Any, mask: Any, segments: Any, positions: Any) -> Any:
        seen = mask_of_layers(mask, segments, pieces.xp)
        places = None if positions is None else positions[:, None]
        hidden = _through(call._replace(mask=seen, positions=places), params.blocks, hidden, remat)
        return normalised(call, hidden, params.gamma, params.beta)

    if twin is spec or key_data is not None:  # dropout counts the rows of a batch, so that none are alike
        return through_layers(hidden, mask, segments, positions)
    return in_pieces(through_layers, hidden, mask, segments, positions)


def _embedded(call: EncoderCall, params: EncoderParams, x: Any, token_types: Any, positions: Any) -> Any:
    """The input layer: what belongs to a token, to its position and to its type, summed and normalised."""
    tables, config = params.embeddings, call.config
    hidden = _rows(tables.token, x, call.pieces)
    if tables.token_type is not None:
        table = tables.token_type
        hidden = hidden + (table[None, :1] if token_types is None else _rows(table, token_types, call.pieces))
    places = tables.position
    if config.positions == "sinusoidal":
        places = call.pieces.sinusoidal(x.shape[1] if positions is None else config.max_positions, config.d_model)
        places = places.astype(hidden.dtype)
    if places is not None:
        hidden = hidden + (places[None, : x.shape[1]] if positions is None else _rows(places, positions, call.pieces))
    return normalised(call, hidden, tables.gamma, tables.beta)


def _restarted(segments: Any, xp: Any) -> Any:
    """The position of each token in its own segment: how far it is from where its number began."""
    place = xp.arange(segments.shape[1], dtype=np.int32)[None]
    begin = xp.where(first_tokens(segments, xp), place, 0)
    return place - (np.maximum.accumulate(begin, axis=1) if xp is np else lax.cummax(begin, axis=1))


def first_tokens(segments: Any, xp: Any) -> Any:
    """Mark the first token of each segment."""
    return xp.concatenate([xp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], axis=1)


def mask_of_layers(mask: Any, segments: Any, xp: Any) -> Any:
    """The mask of all layers: no token sees the padding, and the padding sees nothing."""
    if segments is None:
        return None if mask is None else mask[:, None, None, :]
    own = masks.segments(segments, segments)
    return own if mask is None else own & masks.dense(mask[:, None, None, :])


def _through(call: EncoderCall, blocks: Any, hidden: Any, remat: bool) -> Any:
    """Pass tokens through all layers, by a plain loop, or a scan where ``stack_layers`` made a stack."""
    settings = list(zip(call.config.windows, call.config.thetas, strict=True))

    def one(block: Any, hidden: Any, number: Any, place: int) -> Any:
        def run(block: Any, hidden: Any, number: Any) -> Any:
            return layer(call, block, hidden, number, *settings[place])

        if remat:
            run = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names(*KEPT))
        return run(block, hidden, number)

    place = 0
    for part in blocks if call.pieces.xp is jnp else unstacked(blocks):
        if not isinstance(part, LayerStack):
            hidden = one(part, hidden, place, place)
            place += 1
            continue
        period = len(part.layers)

        def repeat(hidden: Any, turn: Any, place: int = place) -> Any:
            layers, number = turn
            for k, block in enumerate(layers):
                hidden = one(block, hidden, number + k, place + k)
            return hidden, None

        numbers = place + period * jnp.arange(part.repeats)
        hidden, _ = lax.scan(repeat, hidden, (part.layers, numbers))
        place += period * part.repeats
    return hidden


def _rows(table: Any, ids: Any, pieces: Any) -> Any:
    """``table[ids]``. JAX would silently clamp an id outside the table to the last row; here it gives NaN."""
    if pieces.xp is np:
        return table[ids]
    if isinstance(ids, np.ndarray):  # of any width and byte order; in range, so 32 bits hold them
        ids = ids.astype(np.int32)
    return jnp.asarray(table).at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
