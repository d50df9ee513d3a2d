"""Functions of JAX arrays, under ``jax.jit`` unless they cannot be."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .shared import after_more_calls, called, filled, loss_of, with_arrays_of

HEADER = "from functools import partial\n\nimport jax\nimport jax.numpy as jnp\nimport numpy as np"
stack, concat, ints = jnp.stack, jnp.concatenate, jnp.int32
WIDE = 'jax.config.update("jax_enable_x64", True)'


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


def call(attend, fixed, arrays, traced):
    """One call: the arrays by their names, the options that are arrays, and those that are not."""
    return called(attend, arrays, traced | dict(fixed))


def split(options):
    """The options that are not arrays, as pairs, and those that are; an integer for a random key becomes one."""
    options = {k: jax.random.key(x) if k == "dropout_rng" else x for k, x in options.items()}
    traced = {k: jnp.asarray(x) for k, x in options.items() if hasattr(x, "shape")}
    return tuple((k, x) for k, x in options.items() if k not in traced), traced


def as_it_is(run):
    """No transformation."""
    return run


def made(kind, x):
    """An array of the shape and dtype of ``x`` as the compiler knows it; or ``x`` itself, known to it, too."""
    if kind == "ones":
        return jnp.ones(x.shape, x.dtype)
    if kind == "positions":
        rows, columns = (jax.lax.broadcasted_iota("float32", x.shape, x.ndim - k) for k in (2, 1))
        return ((rows + columns) / 64).astype(x.dtype)
    if kind == "identity":
        return jnp.broadcast_to(jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype), x.shape)
    return jnp.asarray(x)


def closing_over(attend, kinds, known):
    """The function where some arrays are constants; ``weights`` among them project what is given."""

    def closed(query, key, value, **given):
        constants = {name: made(kind, known[name]) for name, kind in kinds.items()}
        inputs, found = filled(query, key, value, given, constants, kinds)
        return attend(*inputs, **found)

    return closed


def pull(attend, fixed, arrays, traced, cotangents, transform=as_it_is):
    """Gradients of Σ cotangent · result; the cotangent of a result of another dtype is cast to it."""
    results, back = jax.vjp(lambda arrays: transform(partial(call, attend, fixed))(arrays, traced), arrays)
    return back({k: cotangents[k].astype(x.dtype) for k, x in results.items()})[0]


def to_numpy(leaves, prefix=""):
    """The leaves as NumPy arrays."""
    return {f"{prefix}{k}": np.asarray(x) for k, x in leaves.items()}


def eager(attend, arrays, options):
    """out (and lse), without jit."""
    fixed, traced = split(options)
    return to_numpy(call(attend, fixed, {k: jnp.asarray(x) for k, x in arrays.items()}, traced))


def with_backward(attend, backward):
    """The function, its gradients by ``backward(grad_output, query, key, value, ..., grad_lse=...)``."""
    import functools

    @functools.wraps(attend)
    def run(query, key, value, **options):
        more = {name: options.pop(name) for name in ("bias", "sinks") if options.get(name) is not None}
        names = ("query", "key", "value", *more)
        less = {k: x for k, x in options.items() if k != "return_lse"}

        @jax.custom_vjp
        def call(*arrays):
            return attend(*arrays[:3], **dict(zip(names[3:], arrays[3:], strict=True)), **options)

        def pulled(arrays, cotangent):
            both = cotangent if isinstance(cotangent, (tuple, list)) else (cotangent,)
            given = dict(zip((*names[3:], "grad_lse"), (*arrays[3:], *both[1:]), strict=False))
            return tuple(backward(both[0], *arrays[:3], **given, **less))

        call.defvjp(lambda *arrays: (call(*arrays), arrays), pulled)
        return call(query, key, value, *more.values())

    return run


compiled = partial(jax.jit, static_argnums=(0, 1, 2))


@compiled
def run_forward(attend, fixed, how, arrays, traced):
    """``call`` under jit."""
    return call(attend, fixed, arrays, traced)


def forward(attend, arrays, options):
    """out (and lse)."""
    fixed, traced = split(options)
    return to_numpy(run_forward(attend, fixed, None, arrays, traced))


@compiled
def run_gradient(attend, fixed, transform, arrays, traced, cotangents):
    """``pull`` under jit."""
    return pull(attend, fixed, arrays, traced, cotangents, transform)


def gradient(attend, arrays, options, cotangents, transform=as_it_is):
    """Gradients of Σ cotangent · result."""
    fixed, traced = split(options)
    return to_numpy(run_gradient(attend, fixed, transform, arrays, traced, cotangents), "grad ")


def gradient_under_checkpoint(attend, arrays, options, cotangents):
    """The gradient where the forward is computed again."""
    return gradient(attend, arrays, options, cotangents, jax.checkpoint)


@compiled
def run_gradient_of_a_loss(attend, fixed, how, arrays, traced):
    """The gradient under jit, its loss inside."""
    return jax.grad(lambda arrays: loss_of(call(attend, fixed, arrays, traced), how))(arrays)


def gradient_of_a_loss(attend, arrays, options, cotangents, how):
    """Gradients of a loss; its cotangents are for those who need them by hand."""
    fixed, traced = split(options)
    return to_numpy(run_gradient_of_a_loss(attend, fixed, how, arrays, traced), "grad ")


@compiled
def run_jvp(attend, fixed, how, arrays, tangents, traced):
    """The tangent of ``call`` under jit."""
    return jax.jvp(lambda a: call(attend, fixed, a, traced), (arrays,), (tangents,))[1]


def jvp(attend, arrays, options, tangents):
    """How the results move along the tangents."""
    fixed, traced = split(options)
    return to_numpy(run_jvp(attend, fixed, None, arrays, tangents, traced), "tangent ")


@compiled
def run_second(attend, fixed, how, arrays, tangents, traced, cotangents):
    """The derivative of ``pull`` along the tangents, under jit."""

    def pulled(arrays):
        return pull(attend, fixed, arrays, traced, cotangents)

    if how == "forward over reverse":
        return jax.jvp(pulled, (arrays,), (tangents,))[1]
    return jax.grad(lambda a: sum(jnp.vdot(g, tangents[k]) for k, g in pulled(a).items()))(arrays)


def second(attend, arrays, options, cotangents, tangents, how):
    """How the gradients move along the tangents: by their jvp, or by the gradient of <gradient, tangents>."""
    fixed, traced = split(options)
    return to_numpy(run_second(attend, fixed, how, arrays, tangents, traced, cotangents), "second ")


def axes_of(given, mapped):
    """The mapped axis of each array, or None."""
    return {k: mapped.get(k) for k in given}


def vmap(attend, arrays, options, mapped):
    """The function under vmap over the axes that are named."""
    fixed, traced = split(options)
    run = jax.vmap(partial(call, attend, fixed), (axes_of(arrays, mapped), axes_of(traced, mapped)))
    return to_numpy(jax.jit(run)(arrays, traced))


def per_example_gradient(attend, arrays, options, cotangents, mapped):
    """vmap of the gradient: one gradient for each example."""
    fixed, traced = split(options)
    run = jax.vmap(partial(pull, attend, fixed), (axes_of(arrays, mapped), axes_of(traced, mapped), 0))
    return to_numpy(jax.jit(run)(arrays, traced, cotangents), "grad ")


def changed_in_place(attend, arrays, options, changed):
    """out (and lse) of a second call, after other numbers were written into NumPy arrays that the first was given."""
    fixed, traced = split({k: x for k, x in options.items() if k not in changed})
    own = {k: np.array(x) for k, x in (arrays | options).items() if k in changed}
    arrays = {k: jnp.asarray(x) for k, x in arrays.items()} | own
    call(attend, fixed, arrays, traced)
    for name, x in changed.items():
        own[name][...] = x
    return to_numpy(call(attend, fixed, arrays, traced))


def held(attend, arrays, options):
    """out (and lse) without jit, and the same arrays after more calls."""
    fixed, traced = split(options)
    arrays = {k: jnp.asarray(x) for k, x in arrays.items()}
    run = partial(call, attend, fixed, traced=traced)
    return after_more_calls(lambda arrays: jax.block_until_ready(run(arrays)), arrays, np.asarray)


def gradient_held(attend, arrays, options, cotangents):
    """Gradients without jit, and the same arrays after more calls."""
    fixed, traced = split(options)
    arrays = {k: jnp.asarray(x) for k, x in arrays.items()}
    run = partial(pull, attend, fixed, traced=traced, cotangents=cotangents)
    return after_more_calls(lambda arrays: jax.block_until_ready(run(arrays)), arrays, np.asarray, "grad ")


def custom_rule(attend, arrays, options):
    """Whether its derivative is by a rule that is not JAX's own."""
    fixed, traced = split(options)

    def rules(jaxpr):
        for equation in jaxpr.eqns:
            inner = [x for x in equation.params.values() if hasattr(x, "jaxpr") or hasattr(x, "eqns")]
            inner = [getattr(x, "jaxpr", x) for x in inner]
            if equation.primitive.name.startswith(("custom_vjp", "custom_jvp")):
                yield not any("/jax/" in str(getattr(x, "debug_info", "")) for x in inner)
            yield from (rule for x in inner for rule in rules(x))

    arrays = {k: jnp.asarray(x) for k, x in arrays.items()}
    return {"rule": np.array(any(rules(jax.make_jaxpr(partial(call, attend, fixed))(arrays, traced).jaxpr)))}


def unwritten(attend, arrays, options):
    """The arrays after a call that was given NumPy's own memory."""
    eager(attend, arrays, options)
    return with_arrays_of(arrays, options)
