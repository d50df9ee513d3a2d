"""Layers of attention as functions of vectors and a mask, in a few lines each; a script prints the one that is used."""

from typing import Any

from .adapters import FAMILIES, Offer


def from_flax_attention(layer, causal):
    """``MultiHeadAttention`` of nnx, or of linen bound to its variables: a mask (B, 1, T, S), True = may look."""
    import jax.numpy as jnp

    def apply(inputs, mask=None):
        batch, length = inputs.shape[:2]
        visible = jnp.ones((batch, 1, length, length), bool)
        visible = visible & jnp.tri(length, dtype=bool)[None, None] if causal else visible
        visible = visible if mask is None else visible & mask[:, None, None, :]
        return layer(inputs, mask=visible, deterministic=True)

    return apply


def from_keras_attention(layer, causal):
    """``MultiHeadAttention`` of keras."""
    from keras import ops

    def apply(inputs, mask=None):
        batch, length = inputs.shape[:2]
        given = {} if mask is None else {"attention_mask": ops.broadcast_to(mask[:, None, :], (batch, length, length))}
        return layer(inputs, inputs, use_causal_mask=causal, training=False, **given)

    return apply


def from_equinox_attention(layer, causal):
    """``MultiheadAttention`` of equinox, which takes one text: a mask (T, S), True = may look."""
    import jax
    import jax.numpy as jnp

    def apply(inputs, mask=None):
        batch, length = inputs.shape[:2]
        visible = jnp.ones((batch, length, length), bool)
        visible = visible & jnp.tri(length, dtype=bool)[None] if causal else visible
        visible = visible if mask is None else visible & mask[:, None, :]
        return jax.vmap(lambda x, seen: layer(x, x, x, mask=seen))(inputs, visible)

    return apply


def from_torch_attention(layer, causal):
    """``nn.MultiheadAttention``: masks in which True = may not look."""
    import torch

    layer.eval()

    def apply(inputs, mask=None):
        inputs = inputs if layer.batch_first else inputs.transpose(0, 1)
        length = inputs.shape[1 if layer.batch_first else 0]
        order = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        dropped = None if mask is None else ~mask
        found, _ = layer(inputs, inputs, inputs, key_padding_mask=dropped, attn_mask=order, need_weights=False)
        return found if layer.batch_first else found.transpose(0, 1)

    return apply


def from_torch_encoder_layer(layer, causal):
    """``nn.TransformerEncoderLayer``: masks in which True = may not look."""
    import torch

    layer.eval()

    def apply(inputs, mask=None):
        first = layer.self_attn.batch_first
        inputs = inputs if first else inputs.transpose(0, 1)
        length = inputs.shape[1 if first else 0]
        order = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        found = layer(inputs, src_mask=order, src_key_padding_mask=None if mask is None else ~mask)
        return found if first else found.transpose(0, 1)

    return apply


def _offer(make: Any, arrays: str, width: str = "") -> Any:
    def offer(layer: Any, causal: bool | None) -> Offer:
        facts = {"inputs": "vectors", "positions": "none", "layers": 1}
        for part in filter(None, width.split(".")):
            facts["width"] = getattr(facts.get("width", layer), part)
        kind = arrays
        if kind == "keras":
            import keras

            kind = keras.backend.backend()
        return Offer(make(layer, bool(causal)), kind, make, facts, given=(bool(causal),))

    return offer


LAYERS = {
    "flax.nnx.nn.attention.MultiHeadAttention": _offer(from_flax_attention, "jax", "in_features"),
    "flax.linen.attention.MultiHeadDotProductAttention": _offer(from_flax_attention, "jax"),
    "keras.src.layers.attention.multi_head_attention.MultiHeadAttention": _offer(from_keras_attention, "keras"),
    "equinox.nn._attention.MultiheadAttention": _offer(from_equinox_attention, "jax", "query_size"),
    "torch.nn.modules.activation.MultiheadAttention": _offer(from_torch_attention, "torch", "embed_dim"),
    "torch.nn.modules.transformer.TransformerEncoderLayer": _offer(
        from_torch_encoder_layer, "torch", "self_attn.embed_dim"
    ),
}
KNOWN = LAYERS | FAMILIES  # the first that is among the classes of a model


def offer(model: Any, causal: bool | None) -> Offer:
    """Of a function, itself; of a layer or a module, the adapter of its library.

    Raises:
        TypeError: it cannot be called.
    """
    families = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    for needle, make in KNOWN.items():
        if needle in families:
            return make(model, causal)
    if not callable(model):
        raise TypeError(f"check_model: got {type(model).__name__}, expected a function or a module of a known library")
    return Offer(model)
