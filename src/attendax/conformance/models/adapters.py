"""Models and layers of each library as functions of inputs and keywords, in a few lines each.

A script prints the source of the one that is used and of what that uses, so each uses nothing else of this package.
"""

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

from .blackbox import array_of
from .of_torch import NO_RATE, TORCH_WAYS, from_torch_layer, of_torch, of_transformers
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


FLOAT64_WAY = {"float64": Way(in_float64, forward="in_float64", gradient=None)}


def _of_jax(model: Any, causal: bool | None, of_texts: bool = False) -> Offer:
    """A module that takes a batch; or, of equinox, a text, and a batch where that fails."""
    batch = Offer(from_module(model), "jax", from_module, ways=FLOAT64_WAY)
    return Offer(from_equinox(model), "jax", from_equinox, ways=FLOAT64_WAY, otherwise=batch) if of_texts else batch


def from_module(model):
    """A module of nnx, one of linen that is bound to its variables, or one of equinox that takes a batch."""

    def apply(inputs, **options):
        return model(inputs, **options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


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
    """A keras model or layer, in inference; with a seed in training."""

    def apply(inputs, seed=None, **options):
        with seeded(model, seed):
            return model(inputs, training=seed is not None, **options)

    apply.__signature__ = with_seed(inspect.signature(model.call))
    return apply


def generators(model):
    """The states of all that draws in a keras model."""
    return [x for x in model.non_trainable_variables if x.path.endswith("seed_generator_state")]


@contextlib.contextmanager
def seeded(model, seed):
    """A keras model whose generators begin at a seed, and forget it afterwards."""
    import keras
    from keras import ops

    if seed is None:
        yield
        return
    states = enumerate(generators(model))
    begun = [(x, ops.cast(ops.stack([ops.cast(seed, "int32"), 17 + k]), "uint32")) for k, x in states]
    with keras.StatelessScope(state_mapping=begun):
        yield


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


MORE_THAN_ATTENTION = {  # options of layers with which they are more than attention of their weights
    "normalize_qk": "normalize_qk: queries and keys have a norm of their own",
    "_use_gate": "use_gate: results are multiplied by a gate",
    "bias_k": "add_bias_kv and add_zero_attn: there is one more key",
    "add_zero_attn": "add_bias_kv and add_zero_attn: there is one more key",
}


def _weights(parts: str, layer: Any) -> dict[str, Any]:
    """The weights of a layer as the law has them: NumPy's, an axis of heads joined to the other."""
    for option, why in MORE_THAN_ATTENTION.items():
        if (given := getattr(layer, option, None)) is not None and given is not False:
            raise NotImplementedError(why)
    found: dict[str, Any] = {"num_heads": layer.num_heads}
    for name, (kernel, bias) in zip("QKVO", _projections(parts, layer), strict=True):
        kernel, bias = array_of(kernel), None if bias is None else array_of(bias)
        found[f"W_{name}"] = kernel.reshape(-1, kernel.shape[-1]) if name == "O" else kernel.reshape(len(kernel), -1)
        found[f"b_{name}"] = None if bias is None else bias.reshape(-1)
    return found


def _projections(parts: str, layer: Any) -> list[tuple[Any, Any]]:
    """Kernels and biases of queries, keys, values and results: of flax and keras (M, N, D) and (N, D, M)."""
    if type(layer).__module__.startswith("flax.linen"):
        known = layer.variables["params"]
        return [(known[part]["kernel"], known[part].get("bias")) for part in parts.split()]
    if not hasattr(layer, "in_proj_weight"):
        found = [getattr(layer, part) for part in parts.split()]
        return [(x.weight.T if hasattr(x, "weight") else x.kernel, x.bias) for x in found]
    together, biases = layer.in_proj_weight, layer.in_proj_bias  # of torch: one matrix (3 M, M), or three
    apart = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = [*(apart if together is None else together.chunk(3)), layer.out_proj.weight]
    biases = [*((None,) * 3 if biases is None else biases.chunk(3)), layer.out_proj.bias]
    return [(weight.T, bias) for weight, bias in zip(weights, biases, strict=True)]


LayerSource = tuple[Callable[..., Any], str, str, str, str]
# A layer: what adapts it, its arrays ("keras": those that keras has), attributes that have the width of its vectors
# ("" where a user says it) and its rate of dropout, and its parts, where they are known: then its dropout is on the
# weights of attention alone.
LAYERS: dict[str, LayerSource] = {
    "flax.nnx.nn.attention.MultiHeadAttention":
        (from_flax_attention, "jax", "in_features", "dropout_rate", "query key value out"),
    "flax.linen.attention.MultiHeadDotProductAttention":
        (from_flax_attention, "jax", "", "dropout_rate", "query key value out"),
    "keras.src.layers.attention.multi_head_attention.MultiHeadAttention":
        (from_keras_attention, "keras", "", "_dropout", "_query_dense _key_dense _value_dense _output_dense"),
    "equinox.nn._attention.MultiheadAttention":
        (from_equinox_attention, "jax", "query_size", "dropout.p", "query_proj key_proj value_proj output_proj"),
    "torch.nn.modules.activation.MultiheadAttention":
        (from_torch_layer, "torch", "embed_dim", "dropout", "in_proj out_proj"),
    "torch.nn.modules.transformer.TransformerEncoderLayer":
        (from_torch_layer, "torch", "self_attn.embed_dim", "dropout1.p", ""),
}  # fmt: skip


def _of_layer(known: LayerSource, layer: Any, causal: bool | None) -> Offer:
    make, kind, width, rate, parts = known
    facts: dict[str, Any] = {"inputs": "vectors", "positions": "none", "layers": 1}
    facts |= {"width": operator.attrgetter(width)(layer)} if width else {}
    facts |= {"claims": ["mean of dropout"]} if parts else {}
    facts |= {} if operator.attrgetter(rate)(layer) else NO_RATE
    ways = {"torch": TORCH_WAYS, "jax": FLOAT64_WAY}.get(kind, {})
    if kind == "keras":
        import keras

        kind = keras.backend.backend()
    heads = functools.partial(_weights, parts) if parts else None
    return Offer(make(layer, bool(causal)), kind, make, facts, ways, given=(bool(causal),), heads=heads)


FAMILIES: dict[str, Callable[[Any, bool | None], Offer]] = {  # the first that is among the classes of a model
    "transformers.modeling_utils.PreTrainedModel": of_transformers,
    "keras.src.layers.layer.Layer": _of_keras,
    "torch.nn.modules.module.Module": of_torch,
    "flax.nnx.module.Module": _of_jax,
    "flax.linen.module.Module": _of_jax,
    "equinox._module._module.Module": functools.partial(_of_jax, of_texts=True),
}


def offer(model: Any, causal: bool | None) -> Offer:
    """Offer a function as it is, and a layer or a module by the adapter of its library."""
    families = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}
    if found := next((known for name, known in LAYERS.items() if name in families), None):
        return _of_layer(found, model, causal)
    if made := next((make for name, make in FAMILIES.items() if name in families), None):
        return made(model, causal)
    if not callable(model):
        raise TypeError(f"check_model: got {type(model).__name__}, expected a function or a module of a known library")
    return Offer(model)
