"""Functions of JAX arrays, under ``jax.jit`` unless they cannot be."""

import contextlib
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from .shared import after_more_calls, afterwards, by_hand, called, chunked, closing, loss_of, stepped

HEADER = "from functools import cache, partial\n\nimport jax\nimport jax.numpy as jnp\nimport numpy as np"
asarray = jnp.asarray
WIDE = 'jax.config.update("jax_enable_x64", True)'
# XLA then compiles in about a fifth of the time, which is most of what a small call takes.
CHEAP_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
cheap_jit = partial(jax.jit, compiler_options=CHEAP_OPTIONS)
SMALL_SIZE, SMALL_PRODUCTS = 2**20, 2**26  # numbers of all arrays, and products of queries and keys
WAYS = {"not compiled": ("", "eager", None), "gradient checkpointing": ("recomputed", None, "gradient")}


def wide() -> contextlib.AbstractContextManager:
    """Keep float64."""
    return jax.enable_x64(True)


def on(device):
    """Python that makes arrays on a device: "cuda:0", "gpu:1", "cpu"."""
    kind, _, index = device.partition(":")
    return f'jax.config.update("jax_default_device", jax.devices({kind!r})[{int(index or 0)}])'


def placed(device):
    """Make arrays on a device, or on the one that JAX chooses."""
    if not device:
        return contextlib.nullcontext()
    kind, _, index = device.partition(":")
    return jax.default_device(jax.devices(kind)[int(index or 0)])


def is_lack(error: Exception) -> bool:
    """Tell whether the error says that there is no such derivative: JAX says so in a TypeError."""
    return isinstance(error, TypeError) and "apply forward-mode" in str(error)


@contextlib.contextmanager
def watched(arrays):
    """Nothing can be written to."""
    yield lambda: []


def call(attend, fixed, how, arrays, traced):
    """One call: the arrays by their names, the options that are arrays, and those that are not."""
    return called(attend, arrays, traced | dict(fixed))


def split(options):
    """The options that are not arrays, as pairs, and those that are; an integer for a random key becomes one."""
    options = {k: jax.random.key(x) if k == "dropout_rng" else x for k, x in options.items()}
    traced = {k: jnp.asarray(x) for k, x in options.items() if hasattr(x, "shape")}
    return tuple((k, x) for k, x in options.items() if k not in traced), traced


def made(kind, x):
    """An array of the shape and dtype of ``x`` as the compiler knows it; or ``x`` itself, which it then also knows."""
    if kind == "ones":
        return jnp.ones(x.shape, x.dtype)
    if kind == "positions":
        rows, columns = (jax.lax.broadcasted_iota("float32", x.shape, x.ndim - k) for k in (2, 1))
        return ((rows + columns) / 64).astype(x.dtype)
    if kind == "identity":
        return jnp.broadcast_to(jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype), x.shape)
    return jnp.asarray(x)


closing_over = partial(closing, made)


def pull(attend, fixed, transform, arrays, traced, cotangents):
    """Gradients of Σ cotangent · result; the cotangent of a result of another dtype is cast to it."""
    run = partial(call, attend, fixed, None)
    run = transform(run) if transform else run
    results, back = jax.vjp(lambda arrays: run(arrays, traced), arrays)
    return back({k: cotangents[k].astype(x.dtype) for k, x in results.items()})[0]


def pull_of_loss(attend, fixed, how, arrays, traced, cotangents):
    """Gradients of a loss; its cotangents are for those who need them by hand."""
    return jax.grad(lambda arrays: loss_of(call(attend, fixed, how, arrays, traced), how))(arrays)


def push(attend, fixed, how, arrays, traced, tangents):
    """The movement of the results along the tangents."""
    return jax.jvp(lambda arrays: call(attend, fixed, how, arrays, traced), (arrays,), (tangents,))[1]


def curve(attend, fixed, how, arrays, traced, tangents, cotangents):
    """The movement of the gradients along the tangents: by their jvp, or by the gradient of <gradient, tangents>."""
    pulled = partial(pull, attend, fixed, None, traced=traced, cotangents=cotangents)
    if how == "forward over reverse":
        return jax.jvp(pulled, (arrays,), (tangents,))[1]
    return jax.grad(lambda arrays: sum(jnp.vdot(g, tangents[k]) for k, g in pulled(arrays).items()))(arrays)


def applied(function, attend, fixed, how, *given, **more):
    """One of the functions above."""
    return function(attend, fixed, how, *given, **more)


@cache
def compiled(jit):
    """The functions above under jit."""
    return jit(applied, static_argnums=(0, 1, 2, 3))


def asarrays(arrays):
    """Arrays of JAX."""
    return {k: jnp.asarray(x) for k, x in arrays.items()}


def to_numpy(leaves, prefix=""):
    """The leaves as NumPy arrays."""
    return {f"{prefix}{k}": np.asarray(x) for k, x in leaves.items()}


def eager(attend, arrays, options):
    """out (and lse), without jit."""
    fixed, traced = split(options)
    return to_numpy(call(attend, fixed, None, asarrays(arrays), traced))


def in_float64(attend, arrays, options):
    """out of a model in float64, without jit."""
    with jax.enable_x64(True):
        return eager(attend, {k: x.astype(float) if x.dtype == np.float32 else x for k, x in arrays.items()}, options)


def dtypes(attend, arrays, options):
    """The names of the narrow dtypes in which a call computes its parts."""
    arrays = {k: jnp.asarray(x) for k, x in arrays.items()}
    text = str(jax.make_jaxpr(lambda given: called(attend, given, options))(arrays))
    return {name for short, name in (("bf16[", "bfloat16"), (":f16[", "float16")) if short in text}


def recomputed(apply):
    """The model, computed again for its gradient."""
    return jax.checkpoint(apply)


def ruled(call, pulled):
    """A function whose gradients are those of ``pulled``."""
    found = jax.custom_vjp(call)
    found.defvjp(
        lambda *arrays: (call(*arrays), arrays),
        lambda arrays, found: pulled(arrays, *(found if isinstance(found, (tuple, list)) else (found,))),
    )
    return found


with_backward = partial(by_hand, ruled)


def driven(function, prefix, attend, arrays, options, *given, how=None, jit=jax.jit, **more):
    """The leaves of a function above, under jit."""
    fixed, traced = split(options)
    return to_numpy(compiled(jit)(function, attend, fixed, how, arrays, traced, *given, **more), prefix)


forward = partial(driven, call, "")
gradient = partial(driven, pull, "grad ")
gradient_under_checkpoint = partial(driven, pull, "grad ", how=jax.checkpoint)
gradient_of_a_loss = partial(driven, pull_of_loss, "grad ")
jvp = partial(driven, push, "tangent ")
second = partial(driven, curve, "second ")


def shapes(function, attend, arrays, options, **cotangents):
    """Trace a call, and compile nothing: it raises if it cannot be made."""
    fixed, traced = split(options)
    jax.eval_shape(partial(function, attend, fixed, None), asarrays(arrays), traced, *cotangents.values())
    return {}


traced = partial(shapes, call)
traced_gradient = partial(shapes, pull)


def mapped_over(function, prefix, attend, arrays, options, mapped, jit=jax.jit, **cotangents):
    """The leaves of a function above, under vmap over the axes that are named, and the first of cotangents."""
    fixed, traced = split(options)
    axes = [{k: mapped.get(k) for k in given} for given in (arrays, traced)]
    run = jax.vmap(partial(function, attend, fixed, None), (*axes, *[0] * len(cotangents)))
    return to_numpy(jit(run)(arrays, traced, *cotangents.values()), prefix)


vmap = partial(mapped_over, call, "")
per_example_gradient = partial(mapped_over, pull, "grad ")


def cheaply(function, arrays):
    """A function of this file; if it compiles a small call on a CPU, with few of XLA's optimizations."""
    compiles = isinstance(function, partial) and function.func in (driven, mapped_over, kept)
    keys = arrays["key"].shape[-2] if "key" in arrays else 1
    products = next(iter(arrays.values())).size * keys  # of the queries, which come first
    is_small = sum(x.size for x in arrays.values()) <= SMALL_SIZE and products <= SMALL_PRODUCTS
    cheap = compiles and is_small and jax.default_backend() == "cpu"
    return partial(function, jit=cheap_jit) if cheap else function


def changed_in_place(attend, arrays, options, changed):
    """out (and lse) of a second call, after other numbers were written into NumPy arrays that the first was given."""
    fixed, traced = split({k: x for k, x in options.items() if k not in changed})
    own = {k: np.array(x) for k, x in (arrays | options).items() if k in changed}
    arrays = asarrays(arrays) | own
    call(attend, fixed, None, arrays, traced)
    for name, x in changed.items():
        own[name][...] = x
    return to_numpy(call(attend, fixed, None, arrays, traced))


def kept(function, prefix, attend, arrays, options, jit=jax.jit, **cotangents):
    """The leaves of a function above, and the same arrays after more calls."""
    fixed, traced = split(options)
    run = partial(compiled(jit), function, attend, fixed, None, traced=traced, **cotangents)
    return after_more_calls(lambda arrays: jax.block_until_ready(run(arrays)), asarrays(arrays), np.asarray, prefix)


def not_compiled(function, **_):
    """The function, in place of ``jax.jit`` of it."""
    return function


def eager_held(attend, arrays, options):
    """out (and lse), without jit, and the same arrays after more calls."""
    return kept(call, "", attend, arrays, options, jit=not_compiled)


held = partial(kept, call, "")
gradient_held = partial(kept, pull, "grad ")


def custom_rule(attend, arrays, options):
    """Tell whether its derivative is by a rule that is not JAX's own."""
    fixed, traced = split(options)

    def rules(jaxpr):
        for equation in jaxpr.eqns:
            inner = [x for x in equation.params.values() if hasattr(x, "jaxpr") or hasattr(x, "eqns")]
            inner = [getattr(x, "jaxpr", x) for x in inner]
            if equation.primitive.name.startswith(("custom_vjp", "custom_jvp")):
                yield not any("/jax/" in str(getattr(x, "debug_info", "")) for x in inner)
            yield from (rule for x in inner for rule in rules(x))

    run = partial(call, attend, fixed, None)
    return {"rule": np.array(any(rules(jax.make_jaxpr(run)(asarrays(arrays), traced).jaxpr)))}


def unwritten(attend, arrays, options):
    """The arrays after a call that was given NumPy's own memory."""
    eager(attend, arrays, options)
    return afterwards(arrays, options)


def stepped_compiled(step, inputs, state, options):
    """A step of the cache under jit, or without where that cannot be: a cache may be more than arrays."""
    try:
        return jax.jit(stepped, static_argnums=0)(step, inputs, state, options)
    except (TypeError, ValueError, jax.errors.UnexpectedTracerError):
        return stepped(step, inputs, state, options)


in_steps = partial(chunked, jnp.asarray, lambda *x: np.asarray(jnp.concatenate(*x)), run=stepped_compiled)
