"""Mistakes in JAX that only another direction than forward and gradient shows: jvp, second order, vmap, remat, eager.

Each is a function of the kit's protocol whose forward and gradient are right.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, linear_call
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

keep = jax.lax.stop_gradient


def pieces(query, key, value, *, mask=None, bias=None, is_causal=False, softcap=None, sinks=None):
    """Scores by the formula, and the softmax, the average and lse of them; no row is empty unless a mask says so."""
    if query.shape[-3] != key.shape[-3]:
        raise NotImplementedError("no grouped heads")
    products = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    scores = products if softcap is None else softcap * jnp.tanh(products / softcap)
    scores = scores if bias is None else scores + bias
    allowed = jnp.ones(scores.shape, bool) if mask is None else jnp.broadcast_to(mask, scores.shape)
    if is_causal:
        allowed = allowed & np.tri(*scores.shape[-2:], dtype=bool)
    scores = jnp.where(allowed, scores, -1e30)
    if sinks is not None:
        scores = jnp.concatenate([scores, jnp.broadcast_to(column(sinks), (*scores.shape[:-1], 1))], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : key.shape[-2]]
    weights = jnp.where(allowed, weights, 0)
    return allowed, products, weights, weights @ value, jax.nn.logsumexp(scores, axis=-1)


def column(sinks):
    """Beside the scores."""
    return sinks[:, None, None]


def right(
    query, key, value, *, mask=None, bias=None, is_causal=False, softcap=None, sinks=None, return_lse=False, scale=None,
    window=None, key_lengths=None, query_segment_ids=None, key_segment_ids=None,
):  # fmt: skip
    """The formula."""
    (N, T, D), (G, S) = query.shape[-3:], key.shape[-3:-1]
    key, value = (x if N == G else jnp.repeat(x, N // G, axis=-3) for x in (key, value))
    query = query if scale is None else query * scale * D**0.5
    i, j = np.arange(T)[:, None], np.arange(S)
    hidden = [] if window is None else [(j >= i - window[0]) & (j <= i + window[1])]
    hidden += [] if key_lengths is None else [j < key_lengths[..., None, None, None]]
    if query_segment_ids is not None:
        hidden.append(query_segment_ids[..., None, :, None] == key_segment_ids[..., None, None, :])
    for seen in hidden:
        mask = seen if mask is None else mask & seen
    options = dict(mask=mask, bias=bias, is_causal=is_causal, softcap=softcap, sinks=sinks)
    *_, out, lse = pieces(query, key, value, **options)
    return (out, lse) if return_lse else out


def only_under_jit(query, key, value, **options):
    """A short cut for arrays that are no tracers is wrong."""
    traced = isinstance(query, jax.core.Tracer)
    return right(query if traced else query.astype(jnp.bfloat16).astype(query.dtype), key, value, **options)


def with_tangent(change):
    """The tangent by hand, with a mistake; the gradient is right, because a linear call has a transpose of its own.

    ``change(name, x)`` may change a piece of the tangent: ds, the products' part of it, dlse, or dv.
    """

    def attend(
        query, key, value, *, mask=None, bias=None, is_causal=False, softcap=None, sinks=None, return_lse=False
    ):  # fmt: skip
        options = dict(mask=mask, is_causal=is_causal, softcap=softcap)
        optional = {name: x for name, x in (("bias", bias), ("sinks", sinks)) if x is not None}
        arrays = (query, key, value, *optional.values())

        def run(query, key, value, *more):
            return pieces(query, key, value, **dict(zip(optional, more, strict=True)), **options)[-2:]

        def moves(residuals, dots):
            query, key, value, *more = residuals
            given, moved = (dict(zip(optional, x, strict=True)) for x in (more, dots[3:]))
            allowed, products, weights, _, lse = pieces(query, key, value, **given, **options)
            dproducts = dots[0] @ key.swapaxes(-1, -2) + query @ dots[1].swapaxes(-1, -2)
            ds = dproducts * query.shape[-1] ** -0.5
            if softcap is not None:
                ds = ds * change("cap", 1 - jnp.tanh(products / softcap) ** 2)
            if "bias" in moved:
                ds = ds + change("bias", moved["bias"])
            dlse = (weights * ds).sum(axis=-1)
            if "sinks" in moved:
                share = jnp.exp(column(given["sinks"]) - lse[..., None])
                dlse = dlse + change("sinks", share * column(moved["sinks"]))[..., 0]
            tangent = (weights * (ds - dlse[..., None])) @ value + weights @ change("value", dots[2])
            empty = ~allowed.any(axis=-1)
            return change("row", tangent, empty), change("lse", dlse)

        def transposed(residuals, cotangents):
            return jax.vjp(run, *residuals)[1](cotangents)

        @jax.custom_jvp
        def custom(*arrays):
            return run(*arrays)

        custom.defjvp(lambda primals, dots: (run(*primals), linear_call(moves, transposed, primals, dots)))
        out, lse = custom(*arrays)
        return (out, lse) if return_lse else out

    return attend


def mistaken(piece, how):
    """``change`` for one piece of the tangent."""

    def change(name, x, *more):
        return how(x, *more) if name == piece else x

    return with_tangent(change)


def with_backward(hide):
    """The backward by hand; ``hide(name, x)`` may hide a piece of it from the second derivative."""

    def attend(
        query, key, value, *, mask=None, bias=None, is_causal=False, softcap=None, sinks=None, return_lse=False
    ):  # fmt: skip
        options = dict(mask=mask, is_causal=is_causal, softcap=softcap)
        optional = {name: x for name, x in (("bias", bias), ("sinks", sinks)) if x is not None}
        arrays = (query, key, value, *optional.values())

        def run(query, key, value, *more):
            return pieces(query, key, value, **dict(zip(optional, more, strict=True)), **options)[-2:]

        def backward(arrays, cotangents):
            query, key, value, *more = arrays
            given = {name: hide(name, x) for name, x in zip(optional, more, strict=True)}
            _, products, weights, _, lse = pieces(query, key, value, **given, **options)
            weights = hide("weights", weights)
            dweights = cotangents[0] @ value.swapaxes(-1, -2)
            delta = (weights * dweights).sum(axis=-1, keepdims=True)
            ds = weights * (dweights - delta) + hide("lse", weights) * cotangents[1][..., None]
            slope = 1.0 if softcap is None else hide("cap", 1 - jnp.tanh(products / softcap) ** 2)
            dz = ds * slope * query.shape[-1] ** -0.5
            grads = [dz @ key, dz.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ cotangents[0]]
            if "bias" in given:
                axes = tuple(k for k, size in enumerate(given["bias"].shape) if size != ds.shape[k])
                grads.append(ds.sum(axis=axes, keepdims=True))
            if "sinks" in given:
                share = hide("share", jnp.exp(column(given["sinks"]) - lse[..., None]))
                grads.append((share * (cotangents[1][..., None] - delta)).sum(axis=(0, 2, 3)))
            return tuple(grads)

        @jax.custom_vjp
        def custom(*arrays):
            return run(*arrays)

        custom.defvjp(lambda *arrays: (run(*arrays), arrays), backward)
        out, lse = custom(*arrays)
        return (out, lse) if return_lse else out

    return attend


def hidden(piece):
    """A backward with a piece that the second derivative does not see."""
    return with_backward(lambda name, x: keep(x) if name == piece else x)


@jax.custom_vjp
def seen_once(x):
    """The identity, whose gradient is right and whose own gradient is not."""
    return x


seen_once.defvjp(lambda x: (x, None), lambda _, cotangent: (2 * cotangent,))


def by_primitive(rule, out=0):
    """A primitive with a batching rule of one's own: ``rule(name, size, array, axis)`` puts the axis in front."""
    primitive = Primitive("attention")

    def run(query, key, value, *more, names):
        return right(query, key, value, **dict(zip(names, more, strict=True)))

    primitive.def_impl(run)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
    primitive.def_abstract_eval(lambda q, k, v, *_, names: jax.core.ShapedArray((*q.shape[:-1], v.shape[-1]), q.dtype))

    def batch(arrays, axes, *, names):
        size = next(x.shape[k] for x, k in zip(arrays, axes, strict=True) if k is not None)
        named = zip(("query", "key", "value", *names), arrays, axes, strict=True)
        return primitive.bind(*(rule(name, size, x, k) for name, x, k in named), names=names), out

    batching.primitive_batchers[primitive] = batch

    def attend(query, key, value, *, mask=None, bias=None, key_lengths=None, query_segment_ids=None,
               key_segment_ids=None):  # fmt: skip
        given = dict(mask=mask, bias=bias, key_lengths=key_lengths, query_segment_ids=query_segment_ids,
                     key_segment_ids=key_segment_ids)  # fmt: skip
        given = {name: x for name, x in given.items() if x is not None}
        return primitive.bind(query, key, value, *given.values(), names=tuple(given))

    return attend


def in_front(name, size, x, axis):
    """The right rule."""
    return jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


def no_axis_of_its_own(name, size, x, axis):
    """What is not mapped loses its first axis."""
    return jnp.broadcast_to(x[:1], (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)


def always_the_first(name, size, x, axis):
    """The mapped axis is taken to be the first."""
    return in_front(name, size, x, axis) if axis is None else x


def one_for_all(*names):
    """The mask, or another option, of the first example is taken for all."""

    def rule(name, size, x, axis):
        x = in_front(name, size, x, axis)
        return jnp.broadcast_to(x[:1], x.shape) if name in names else x

    return by_primitive(rule)


def gradients_added_up(query, key, value):
    """The gradient of the keys is added up over the mapped axis, as if they were shared."""

    @jax.custom_batching.custom_vmap
    def pulled(cotangent, *arrays):
        return jax.vjp(right, *arrays)[1](cotangent)

    @pulled.def_vmap
    def _(size, is_batched, cotangent, *arrays):
        grads = jax.vmap(lambda c, *a: jax.vjp(right, *a)[1](c))(cotangent, *arrays)
        return (grads[0], jnp.broadcast_to(grads[1].sum(0), grads[1].shape), grads[2]), (True,) * 3

    @jax.custom_vjp
    def once(*arrays):
        return pulled(*arrays)

    def no_second(residuals, cotangents):
        raise NotImplementedError("no second derivative")

    once.defvjp(lambda *arrays: (pulled(*arrays), None), no_second)

    @jax.custom_vjp
    def custom(*arrays):
        return right(*arrays)

    custom.defvjp(lambda *arrays: (right(*arrays), arrays), lambda arrays, cotangent: once(cotangent, *arrays))
    return custom(query, key, value)


def weights_beside_the_graph(query, key, value, *, is_causal=False):
    """A call leaves its weights in a variable of Python for the backward: those of another trace, under remat."""
    shelf = []

    def forward(query, key, value):
        _, _, weights, out, _ = pieces(query, key, value, is_causal=is_causal)
        return out, (query, key, value, weights)

    def backward(arrays, cotangent):
        query, key, value, weights = arrays
        weights = shelf[0] if shelf else weights
        dweights = cotangent @ value.swapaxes(-1, -2)
        ds = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True)) * query.shape[-1] ** -0.5
        return ds @ key, ds.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ cotangent

    @jax.custom_vjp
    def custom(*arrays):
        out, residuals = forward(*arrays)
        shelf.append(residuals[-1])
        return out

    custom.defvjp(forward, backward)
    return custom(query, key, value)


def wrong_tangent_beside_a_constant(which):
    """A rule that is told which arrays do not move, and is wrong where the one does not."""

    @jax.custom_jvp
    def custom(*arrays):
        return right(*arrays)

    def rule(primals, dots):
        still = type(dots[which]) is SymbolicZero
        dots = [jnp.zeros_like(x) if type(dot) is SymbolicZero else dot for x, dot in zip(primals, dots, strict=True)]
        out, moved = jax.jvp(right, primals, tuple(dots))
        return out, 2 * moved if still else moved

    custom.defjvp(rule, symbolic_zeros=True)
    return lambda query, key, value: custom(query, key, value)


def wrong_tangent(where):
    """A rule that is wrong where options or sizes are such."""

    def attend(query, key, value, *, mask=None, scale=None, window=None, key_lengths=None,
               query_segment_ids=None, key_segment_ids=None):  # fmt: skip
        given = dict(mask=mask, scale=scale, window=window, key_lengths=key_lengths,
                     query_segment_ids=query_segment_ids, key_segment_ids=key_segment_ids)  # fmt: skip
        given = {name: x for name, x in given.items() if x is not None}

        @jax.custom_jvp
        def custom(*arrays):
            return right(*arrays, **given)

        def rule(primals, dots):
            out, moved = jax.jvp(lambda *arrays: right(*arrays, **given), primals, dots)
            return out, 2 * moved if where(given, query.shape[-3] // key.shape[-3]) else moved

        custom.defjvp(rule)
        return custom(query, key, value)

    return attend


def hidden_beside_a_constant(which):
    """A backward that is told which arrays need no gradient, and where the one does not, is not differentiable."""

    def attend(query, key, value):
        known = []

        def forward(*arrays):
            known.append(not arrays[which].perturbed)
            arrays = tuple(x.value for x in arrays)
            return right(*arrays), arrays

        def backward(arrays, cotangent):
            grads = jax.vjp(right, *arrays)[1](cotangent)
            return tuple(keep(x) if known[-1] else x for x in grads)

        @jax.custom_vjp
        def custom(*arrays):
            return right(*arrays)

        custom.defvjp(forward, backward, symbolic_zeros=True)
        return custom(query, key, value)

    return attend


MISTAKES = {
    "eager": only_under_jit,
    "jvp: plain": mistaken("value", lambda x: 0 * x),
    "jvp: causal, softcap": mistaken("cap", lambda x: jnp.ones_like(x)),
    "jvp: bias": mistaken("bias", lambda x: 0 * x),
    "jvp: mask with an empty row": mistaken("row", lambda x, empty: jnp.where(empty[..., None], jnp.nan, x)),
    "jvp: lse": mistaken("lse", lambda x: 0 * x),
    "jvp: grouped heads and a mask": wrong_tangent(lambda given, group: group > 1),
    "jvp: key lengths and window": wrong_tangent(lambda given, group: "window" in given),
    "jvp: segments and scale": wrong_tangent(lambda given, group: "query_segment_ids" in given),
    "second order: forward over reverse": hidden("weights"),
    "second order: reverse over reverse": with_backward(lambda name, x: seen_once(x) if name == "weights" else x),
    "second order: mask and softcap": hidden("cap"),
    "second order: bias": hidden("bias"),
    "second order: lse": hidden("lse"),
    "vmap: first axis": by_primitive(in_front, out=1),
    "vmap: shared keys": by_primitive(no_axis_of_its_own),
    "vmap: other axes": by_primitive(always_the_first),
    "vmap: a mask for each": one_for_all("mask"),
    "vmap: a bias for each": one_for_all("bias"),
    "vmap: lengths for each": one_for_all("key_lengths"),
    "vmap: segments for each": one_for_all("query_segment_ids", "key_segment_ids"),
    "vmap: gradients by example": gradients_added_up,
    "checkpoint": weights_beside_the_graph,
    "jvp: sinks": mistaken("sinks", lambda x: 0 * x),
    "second order: sinks": hidden("share"),
    "second order: sinks, the other way": with_backward(lambda name, x: seen_once(x) if name == "share" else x),
    "jvp: query of ones, 64": wrong_tangent_beside_a_constant(0),
    "jvp: value of identity, 64": wrong_tangent_beside_a_constant(2),
    "second order: query of ones, 64": hidden_beside_a_constant(0),
    "second order: value of identity, 64": hidden_beside_a_constant(2),
}
