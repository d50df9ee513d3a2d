"""Libraries of JAX: attendax itself, its function on every backend and its specification, and others."""

import functools

from .adapter import GROUPED, HEADS, LAYER, RANK_4, Adapter


def attention(
    fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0, sinks=None, implementation=None,
):  # fmt: skip
    """Call attention with each keyword of the protocol as a mask or a score modifier."""
    import jax

    from attendax import masks, scores

    allowed = [masks.causal(offset)] if is_causal else []
    allowed += [masks.window(*window, offset)] if window is not None else []
    allowed += [masks.padding(key_lengths)] if key_lengths is not None else []
    allowed += [masks.segments(query_segment_ids, key_segment_ids)] if query_segment_ids is not None else []
    joined = mask if not allowed or mask is None else masks.dense(mask)
    for one in allowed:
        joined = one if joined is None else joined & one
    modifiers = [] if softcap is None else [scores.softcap(softcap)]
    modifiers += [] if sinks is None else [scores.sink(sinks)]
    if isinstance(dropout_rng, int):
        dropout_rng = jax.random.key(dropout_rng)
    return fn(
        query, key, value, mask=joined, bias=bias, scale=scale, dropout_rate=dropout_rate, dropout_rng=dropout_rng,
        score_mod=scores.compose(*modifiers) if modifiers else None, return_lse=return_lse,
        implementation=implementation,
    )  # fmt: skip


def attention_backward(fn, grad_output, query, key, value, *, grad_lse=None, **options):
    """The specification's backward has the arguments of its forward."""
    from attendax import spec

    def backward(*arrays, return_lse, **options):
        found = spec.attention_backward(grad_output, *arrays, grad_lse=grad_lse, **options)
        sinks = [] if found.grad_score_mod is None else found.grad_score_mod.sinks()
        return [x for x in (*found[:4], *sinks) if x is not None]

    return attention(backward, query, key, value, **options)


def heads_inside(*arrays):
    """(..., N, T, D) as (..., T, N, D), or back."""
    return [x.swapaxes(-3, -2) for x in arrays]


def lifted(x, rank):
    """A mask or a bias of two axes, which is meant for every head; another is left to the library."""
    return x if x is None or x.ndim > 2 else x.reshape((1,) * (rank - x.ndim) + x.shape)


def with_heads_inside(fn, query, key, value, *, names, rank, window=None, return_lse=False, **options):
    """(..., T, N, D); keywords by their names there; masks and biases of a rank: "" for any, 0 for the arrays'."""
    for name in {"mask", "bias"} & options.keys() if rank != "" else ():
        options[name] = lifted(options[name], rank or query.ndim)
    if window is not None:
        longest = max(query.shape[-2], key.shape[-2])
        options["window"] = tuple(longest if side is None else side for side in window)
    options |= {"return_lse": True} if return_lse else {}
    found = fn(*heads_inside(query, key, value), **{names.get(k, k): x for k, x in options.items()})
    return (found[0].swapaxes(-3, -2), found[1].swapaxes(-2, -1)) if return_lse else found.swapaxes(-3, -2)


def flax_linen(fn, query, key, value, *, mask=None, bias=None, is_causal=False, dropout_rate=0.0, dropout_rng=None):
    """(..., T, N, D); causal by the library's own masks; dropout is asked to be each batch's and head's own."""
    import jax.numpy as jnp
    from flax import linen

    if is_causal:
        causal = linen.make_attention_mask(jnp.arange(query.shape[-2]), jnp.arange(key.shape[-2]), jnp.greater_equal)[0]
        mask = linen.combine_masks(mask, causal if mask is None else lifted(causal, mask.ndim))
    given = {"dropout_rate": dropout_rate, "dropout_rng": dropout_rng, "broadcast_dropout": False}
    return fn(*heads_inside(query, key, value), bias=bias, mask=mask, **given).swapaxes(-3, -2)


def flat(*arrays):
    """(..., N, T, D) as (..., T, N * D)."""
    return [x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1]) for x in heads_inside(*arrays)]


def equinox(fn, query, key, value, *, mask=None, dropout_rate=0.0, dropout_rng=None):
    """A layer of identities; it takes one example (T, N * D), so batches are by jax.vmap, and masks (N, T, S)."""
    import equinox
    import jax
    import jax.numpy as jnp

    (*batch, heads, length, width), wide = query.shape, query.shape[-3] * value.shape[-1]
    sizes = {"value_size": wide, "output_size": wide, "qk_size": width, "vo_size": value.shape[-1]}
    layer = fn(heads, heads * width, **sizes, dropout_p=dropout_rate, key=jax.random.key(0))
    eyes = [jnp.eye(n, dtype=query.dtype) for n in (heads * width, heads * width, wide, wide)]
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    layer = equinox.tree_at(lambda layer: [getattr(layer, name).weight for name in names], layer, eyes)
    if mask is not None:
        if mask.ndim not in (2, query.ndim):
            raise NotImplementedError("a mask has no batch axis: it is for jax.vmap to say")
        mask, full = lifted(mask, query.ndim), (*batch, heads, length, key.shape[-2])
        mask = jnp.broadcast_to(mask, [n if m == 1 else m for m, n in zip(mask.shape, full, strict=True)])

    def run(query, key, value, mask, rng):
        return layer(query, key, value, mask, key=rng)

    for _ in batch:
        run = jax.vmap(run)
    found = run(*flat(query, key, value), mask, None if dropout_rng is None else jax.random.split(dropout_rng, batch))
    return found.reshape(*batch, length, heads, value.shape[-1]).swapaxes(-3, -2)


def haiku(fn, query, key, value, *, mask=None):
    """A layer of identities on (..., T, N * D); masks of the rank of the scores."""
    import haiku
    import jax
    import jax.numpy as jnp

    def identity(shape, dtype):
        if shape[0] != shape[1]:
            raise NotImplementedError("projects arrays of any width")
        return jnp.eye(shape[0], dtype=dtype)

    def run(*given):
        sizes = {"key_size": query.shape[-1], "value_size": width, "model_size": heads * width}
        return fn(heads, **sizes, w_init=identity, with_bias=False)(*given)

    heads, width = query.shape[-3], value.shape[-1]
    given, layer = [*flat(query, key, value), lifted(mask, query.ndim)], haiku.transform(run)
    found = layer.apply(layer.init(jax.random.key(0), *given), None, *given)
    return found.reshape(*found.shape[:-1], heads, width).swapaxes(-3, -2)


def flash_attention_jax(fn, query, key, value, *, mask=None, is_causal=False):
    """(B, N, T, D); the mask is (B, S), and causal is another function, without mask."""
    import flash_attention_jax
    import jax.numpy as jnp

    if mask is not None and (is_causal or mask.ndim != 4 or mask.shape[:3] != (query.shape[0], 1, 1)):
        raise NotImplementedError("a mask is (B, S), and not for causal_flash_attention")
    if is_causal:
        return flash_attention_jax.causal_flash_attention(query, key, value)
    seen = jnp.ones((key.shape[0], key.shape[-2]), bool) if mask is None else mask[:, 0, 0]
    return fn(query, key, value, seen)


WIDTHS = "values are as wide as its keys"
FLOAT16 = {"float16": "its product of float16 does not run on a CPU"}
JAX_NN = FLOAT16 | {"V != D": f"its {WIDTHS}"} | dict.fromkeys(("rank 2", "rank 5"), "arrays of rank 3 or 4")
TOKAMAX = 'from absl import flags\n\nflags.FLAGS(["tokamax"])'  # else it reads the arguments of the command
KERAS = 'import os\n\nos.environ["KERAS_BACKEND"] = "jax"'
mean = functools.partial(Adapter, means={"empty": "mean"})
inside = functools.partial(mean, with_heads_inside)
NAMES = {"window": "local_window_size", "key_lengths": "key_value_seq_lengths", "return_lse": "return_residual"}
OPTIONS = "mask bias is_causal scale window key_lengths"
ours = functools.partial(Adapter, attention, "attendax:attention", package="attendax")
ADAPTERS = {
    "attendax": ours(),
    "attendax-dense": ours(options={"implementation": "dense"}),
    "attendax-blockwise": ours(options={"implementation": "blockwise"}),
    "attendax-spec": Adapter(attention, "attendax.spec:attention", arrays="numpy", package="attendax",
        backward=attention_backward),
    **{
        name: inside("jax.nn:dot_product_attention", package="jax", lacks=JAX_NN, offers=f"{OPTIONS} return_lse",
            options={"names": NAMES, "rank": 4, **more})
        for name, more in {"jax.nn": {}, "jax.nn-cudnn": {"implementation": "cudnn"}}.items()
    },
    **{
        f"tokamax-{implementation}": inside("tokamax:dot_product_attention", package="tokamax", lacks=HEADS | FLOAT16,
            setup=TOKAMAX, offers=f"{OPTIONS} softcap",
            options={"names": NAMES | {"softcap": "logits_soft_cap"}, "rank": 0, "implementation": implementation})
        for implementation in ("xla", "xla_chunked")
    },
    "flax": mean(flax_linen, "flax.linen:dot_product_attention", package="flax", lacks=GROUPED | HEADS),
    "flax-nnx": inside("flax.nnx:dot_product_attention", package="flax",
        offers="mask bias is_causal dropout_rate dropout_rng",
        options={"names": {}, "rank": "", "broadcast_dropout": False},  # each batch's and head's own
        lacks=HEADS | FLOAT16 | {"V != D": f"without dropout it calls jax.nn, whose {WIDTHS}"}),
    "equinox": mean(equinox, "equinox.nn:MultiheadAttention", package="equinox", lacks=LAYER),
    "haiku": mean(haiku, "haiku:MultiHeadAttention", package="dm-haiku", lacks=LAYER),
    "keras": inside("keras.ops:dot_product_attention", package="keras", setup=KERAS,
        offers="mask bias is_causal scale softcap",
        options={"names": {"softcap": "attn_logits_soft_cap"}, "rank": ""},
        lacks=RANK_4 | FLOAT16 | {"V != D": "the value has the shape of the key"}),
    "memory-efficient-attention": inside("memory_efficient_attention:efficient_dot_product_attention_jax",
        package="memory-efficient-attention", lacks=GROUPED | HEADS, offers="mask bias",
        options={"names": {}, "rank": 0}),
    "flash-attention-jax": Adapter(flash_attention_jax, "flash_attention_jax:flash_attention",
        package="flash-attention-jax", means={"causal": "end"}, lacks=GROUPED | RANK_4),
}  # fmt: skip
