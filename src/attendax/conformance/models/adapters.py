"""Models and layers of each library as functions of inputs and keywords, in a few lines each.

A script prints the source of the one that is used and of what that uses, so each uses nothing else of this package.
"""

import contextlib
import inspect
import operator
from collections.abc import Callable
from typing import Any

from . import weights as readers
from .of_torch import NO_RATE, drawing, of_torch, of_transformers, torch_ways
from .runner import Offer, Way, with_seed


def in_float64(model):
    """A copy of a module of flax or equinox, its weights in float64."""
    import jax

    def widened(x):
        return x.astype("float64") if hasattr(x, "dtype") and jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x

    with jax.enable_x64(True):
        if hasattr(model, "unbind"):  # of linen
            module, variables = model.unbind()
            return module.bind(jax.tree.map(widened, variables))
        if type(model).__module__.startswith("equinox."):
            return jax.tree.map(widened, model)
        from flax import nnx

        graph, state = nnx.split(model)
        return nnx.merge(graph, jax.tree.map(widened, state))


WIDE = {"float64": Way(in_float64, forward="in_float64", gradient=None)}


def _of_flax(model: Any, causal: bool | None) -> Offer:
    return Offer(from_module(model), "jax", from_module, ways=WIDE)


def from_module(model):
    """A module of nnx, one of linen that is bound to its variables, or one of equinox that takes a batch."""

    def apply(inputs, **options):
        return model(inputs, **options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_equinox(model: Any, causal: bool | None) -> Offer:
    batch = Offer(from_module(model), "jax", from_module, ways=WIDE)
    return Offer(from_equinox(model), "jax", from_equinox, ways=WIDE, otherwise=batch)


def from_equinox(model):
    """A module of equinox, which takes one text: of a batch, each."""
    import jax

    def apply(inputs, **options):
        return jax.vmap(lambda one, given: model(one, **given))(inputs, options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_keras(model: Any, causal: bool | None) -> Offer:
    import keras

    facts = {} if any(generators(model)) else {"lacks": {"dropout": "no layer of it draws"}}
    return Offer(from_keras(model), keras.backend.backend(), from_keras, facts)


def from_keras(model):
    """A model or layer of keras, in inference; with a seed in training."""

    def apply(inputs, seed=None, **options):
        with seeded(model, seed):
            return model(inputs, training=seed is not None, **options)

    apply.__signature__ = with_seed(inspect.signature(model.call))
    return apply


def generators(model):
    """The states of all that draws in a model of keras."""
    return [x for x in model.non_trainable_variables if x.path.endswith("seed_generator_state")]


@contextlib.contextmanager
def seeded(model, seed):
    """A model of keras whose generators begin at a seed, and forget it afterwards."""
    import keras
    from keras import ops

    if seed is None:
        yield
        return
    begun = [
        (x, ops.cast(ops.stack([ops.cast(seed, "int32"), 17 + k]), "uint32")) for k, x in enumerate(generators(model))
    ]
    with keras.StatelessScope(state_mapping=begun):
        yield


FAMILIES: dict[str, Callable[[Any, bool | None], Offer]] = {  # the first that is among the classes of a model
    "transformers.modeling_utils.PreTrainedModel": of_transformers,
    "keras.src.layers.layer.Layer": _of_keras,
    "torch.nn.modules.module.Module": of_torch,
    "flax.nnx.module.Module": _of_flax,
    "flax.linen.module.Module": _of_flax,
    "equinox._module._module.Module": _of_equinox,
}


def visible(inputs, mask, causal):
    """Pairs of tokens of each text of which the first may look at the second: (B, T, S)."""
    import jax.numpy as jnp

    batch, length = inputs.shape[:2]
    found = jnp.broadcast_to(jnp.tri(length, k=0 if causal else length, dtype=bool), (batch, length, length))
    return found if mask is None else found & mask[:, None, :]


def from_flax_attention(layer, causal):
    """``MultiHeadAttention`` of nnx, or of linen bound to its variables: a mask (B, 1, T, S), True = may look."""
    import jax
    from flax import nnx

    def apply(inputs, mask=None, seed=None):
        seen = visible(inputs, mask, causal)[:, None]
        if seed is None:
            return layer(inputs, mask=seen, deterministic=True)
        key = jax.random.key(seed)
        drawn = {"rngs": nnx.Rngs(dropout=key)} if isinstance(layer, nnx.Module) else {"dropout_rng": key}
        return layer(inputs, mask=seen, deterministic=False, **drawn)

    return apply


def from_keras_attention(layer, causal):
    """``MultiHeadAttention`` of keras."""
    from keras import ops

    def apply(inputs, mask=None, seed=None):
        batch, length = inputs.shape[:2]
        given = {} if mask is None else {"attention_mask": ops.broadcast_to(mask[:, None, :], (batch, length, length))}
        with seeded(layer, seed):
            return layer(inputs, inputs, use_causal_mask=causal, training=seed is not None, **given)

    return apply


def from_equinox_attention(layer, causal):
    """``MultiheadAttention`` of equinox, which takes one text: a mask (T, S), True = may look."""
    import jax

    def apply(inputs, mask=None, seed=None):
        seen = visible(inputs, mask, causal)
        if seed is None:
            return jax.vmap(lambda x, seen: layer(x, x, x, mask=seen, inference=True))(inputs, seen)
        keys = jax.random.split(jax.random.key(seed), len(inputs))
        return jax.vmap(lambda x, seen, key: layer(x, x, x, mask=seen, key=key, inference=False))(inputs, seen, keys)

    return apply


def from_torch_layer(layer, causal, training=False):
    """``nn.MultiheadAttention`` or ``nn.TransformerEncoderLayer``: masks in which True = may not look."""
    import torch

    layer.train(training)
    first = getattr(layer, "self_attn", layer).batch_first

    def apply(inputs, mask=None, seed=None):
        inputs = inputs if first else inputs.transpose(0, 1)
        length = inputs.shape[1 if first else 0]
        order = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        dropped = None if mask is None else ~mask
        with drawing(layer, seed):
            if isinstance(layer, torch.nn.MultiheadAttention):
                found, _ = layer(inputs, inputs, inputs, key_padding_mask=dropped, attn_mask=order, need_weights=False)
            else:
                found = layer(inputs, src_mask=order, src_key_padding_mask=dropped)
        return found if first else found.transpose(0, 1)

    return apply


def _offer(
    make: Callable[..., Any], arrays: str, width: str, rate: str = "", heads: Callable[[Any], Any] | None = None
) -> Any:
    """Make a function that offers a layer of a framework ("keras": of the one that keras has) by its adapter.

    ``width`` and ``rate`` are attributes that have the width of its vectors, "" where a user says it, and its rate of
    dropout; ``heads`` reads its weights: then its dropout is on the weights of attention alone.
    """

    def offer(layer: Any, causal: bool | None) -> Offer:
        facts: dict[str, Any] = {"inputs": "vectors", "positions": "none", "layers": 1}
        facts |= {"width": operator.attrgetter(width)(layer)} if width else {}
        facts["claims"] = ["mean of dropout"] if heads else []
        if not operator.attrgetter(rate)(layer):
            facts["lacks"] = {"dropout": NO_RATE}
        kind, ways = arrays, torch_ways() if arrays == "torch" else WIDE
        if kind == "keras":
            import keras

            kind, ways = keras.backend.backend(), {}
        return Offer(make(layer, bool(causal)), kind, make, facts, ways, given=(bool(causal),), heads=heads)

    return offer


LAYERS = {
    "flax.nnx.nn.attention.MultiHeadAttention": _offer(
        from_flax_attention, "jax", "in_features", "dropout_rate", readers.of_flax
    ),
    "flax.linen.attention.MultiHeadDotProductAttention": _offer(
        from_flax_attention, "jax", "", "dropout_rate", readers.of_flax
    ),
    "keras.src.layers.attention.multi_head_attention.MultiHeadAttention": _offer(
        from_keras_attention, "keras", "", "_dropout", readers.of_keras
    ),
    "equinox.nn._attention.MultiheadAttention": _offer(
        from_equinox_attention, "jax", "query_size", "dropout.p", readers.of_equinox
    ),
    "torch.nn.modules.activation.MultiheadAttention": _offer(
        from_torch_layer, "torch", "embed_dim", "dropout", readers.of_torch
    ),
    "torch.nn.modules.transformer.TransformerEncoderLayer": _offer(
        from_torch_layer, "torch", "self_attn.embed_dim", "dropout1.p"
    ),
}
KNOWN = LAYERS | FAMILIES  # the first that is among the classes of a model


def offer(model: Any, causal: bool | None) -> Offer:
    """Offer a function as it is, and a layer or a module by the adapter of its library."""
    families = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    for needle, make in KNOWN.items():
        if needle in families:
            return make(model, causal)
    if not callable(model):
        raise TypeError(f"check_model: got {type(model).__name__}, expected a function or a module of a known library")
    return Offer(model)
