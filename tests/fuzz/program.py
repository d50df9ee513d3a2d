"""The JAX program of a case, as users write it, around any attention; and its right results, by the definition.

The definition is the plain dense formula, in whose place JAX sees `attention` otherwise. JAX differentiates it and
NumPy runs it (`numpy_program`), so nothing that attendax computes is in the right results.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax.spec import dropout

from . import data, numpy_program
from .case import Case

Arrays = dict[str, Any]
EPSILON = 1e-5  # of the layer norm
MODEST = 1e4  # an lse whose square is not in the loss when it is larger, nor when it is -inf
REMAT = {
    "all": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse"),
}


def by_attention(attention: Callable) -> Callable:
    """One call of attention: (case, query, key, value, arrays) -> (out, lse)."""

    def once(case: Case, q: Any, k: Any, v: Any, arrays: Arrays) -> Any:
        found = attention(q, k, v, **data.options(case, arrays), return_lse=bool(case.lse))
        return found if case.lse else (found, None)

    return once


def stored(x: Any) -> Any:
    """Mark a number that is stored in the dtype of the query (`numpy_program`)."""
    return jax.lax.reduce_precision(x, 11, 52)


def scores(case: Case, q: Any, k: Any, arrays: Arrays, allowed: Any) -> tuple[Any, Any]:
    """``mod(scale · q kᵀ) + bias``, and before the modifier."""
    scale = case.D**-0.5 if case.scale is None else case.scale
    z = jnp.where(allowed, scale * q @ k.swapaxes(-1, -2), 0)
    s = z if case.modifier is None else data.modified(case, z, arrays)
    return (s if case.bias is None else s + jnp.where(arrays["bias"] == -np.inf, 0, arrays["bias"])), z


def projected(case: Case, arrays: Arrays) -> list[Any]:
    """Query, key and value, as the attention gets them."""
    found = []
    for name in ("query", "key", "value"):
        x = arrays[name]
        if name in case.broadcast:
            x = jnp.broadcast_to(x[(..., *(slice(1),) * (2 if case.one_head else 3))], x.shape)
        found.append(x @ arrays[f"weights_{name}"] if case.layers else x)
    return found


def dense(case: Case, q: Any, k: Any, v: Any, arrays: Arrays) -> list[Any]:
    """Query, key and value with as many heads each, and the pairs that mask and bias allow."""
    q, k, v = (x[None] if case.one_head else x for x in (q, k, v))
    k, v = (jnp.broadcast_to(x[..., None, :, :], (*x.shape[:-2], case.N // case.G, *x.shape[-2:])) for x in (k, v))
    k, v = (x.reshape(*x.shape[:-4], case.N, *x.shape[-2:]) for x in (k, v))
    allowed = data.allowed(case, arrays, jnp)
    return [q, k, v, allowed if case.bias is None else allowed & (arrays["bias"] != -np.inf)]


def largest_score(case: Case, arrays: Arrays) -> float:
    """The largest absolute score of an allowed pair, before or after modifier and bias."""
    largest = 0.0
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        for own in (data.of_call(case, arrays, index) for index in np.ndindex(*case.mapped)):
            q, k, _, allowed = dense(case, *projected(case, own), own)
            for x in scores(case, q, k, own, allowed):
                largest = max(largest, float(jnp.where(allowed, abs(x), 0).max(initial=0.0)))
    return largest


def weights(s: Any, again: Any, allowed: Any) -> tuple[Any, Any]:
    """``p = exp(again - max) / total`` over the allowed pairs, and ``lse``; maximum and total are those of ``s``."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.where(allowed, s, -np.inf), -1, keepdims=True, initial=-np.inf))
    empty = largest == -np.inf
    largest = jnp.where(empty, 0, largest)
    total = jnp.where(allowed, jnp.exp(jnp.where(allowed, s - largest, 0)), 0).sum(-1, keepdims=True)
    total, again = jnp.where(empty, 1, total), jnp.where(allowed, again - largest, 0)
    above = jax.lax.stop_gradient(jnp.max(again, -1, keepdims=True, initial=0.0))  # 0 unless numbers are perturbed
    powers = jnp.where(allowed, jnp.exp(again - above), 0)
    return powers / total, jnp.where(empty, -np.inf, largest + jnp.log(total))[..., 0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def average(is_forward: bool, s: Any, again: Any, v: Any, kept: Any, allowed: Any) -> Any:
    """``out = kept p v`` and ``lse``."""
    p, lse = weights(s, s, allowed)
    return (kept * p) @ v, lse


@average.defjvp
def average_jvp(is_forward: bool, primals: Any, tangents: Any) -> Any:
    """``dp = p (ds - Σ p ds)``, as programs round it.

    They compute scores again, in other products, beside the maximum and the total of the forward. Those weights need
    not sum to 1: the gradient of the query has what all keys have in common, times that error.
    """
    (s, again, v, kept, allowed), (_, ds, dv, _, _) = primals, tangents
    p, p_again = weights(s, s, allowed)[0], weights(s, again, allowed)[0]
    moved = p_again * ds
    dlse = moved.sum(-1, keepdims=True)
    if is_forward:
        dout = (kept * p_again * (ds - dlse)) @ v + (kept * p) @ dv
    else:  # transposed: p_again (dp - dout · out)
        dout = (kept * moved) @ v - ((kept * p) @ v) * dlse + (kept * p_again) @ dv
    return average(is_forward, *primals), (dout, dlse[..., 0])


def by_definition(rng: Any) -> Callable:
    """One call by the definition: (case, query, key, value, arrays) -> (out, lse)."""

    def once(case: Case, q: Any, k: Any, v: Any, arrays: Arrays) -> Any:
        q, k, v, allowed = dense(case, q, k, v, arrays)
        s, again = (scores(case, q, k, arrays, allowed)[0] for _ in range(2))
        kept = 1.0
        if case.dropout:
            kept = dropout.keep(rng, case.scores, case.dropout) / (1 - case.dropout if case.dropout < 1 else 1)
        out, lse = average(case.direction in ("jvp", "linearize", "jacfwd"), s, again, v, kept, allowed)
        out = stored(out)
        return (out[0], lse[0]) if case.one_head else (out, lse)

    return once


def call(once: Callable, case: Case, arrays: Arrays) -> Arrays:
    """One call, without maps."""
    out, lse = once(case, *projected(case, arrays), arrays)
    if case.layers:
        centred = out - out.mean(-1, keepdims=True)
        out = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return {"out": out} | ({"lse": lse} if case.lse else {})


def mapped(case: Case, level: int, function: Callable) -> Callable:
    """``function`` over the first axis of the arrays that are not shared at this level."""
    kind = case.maps[level]

    def one_more(arrays: Arrays) -> Any:
        here = {name: x for name, x in arrays.items() if not case.is_shared(name, level)}
        rest = {name: x for name, x in arrays.items() if name not in here}
        if kind == "map":
            return jax.lax.map(lambda x: function(rest | x), here)
        if kind == "scan":
            return jax.lax.scan(lambda carry, x: (carry + 1, function(rest | x)), 0, here)[1]
        axes = {name: int(data.generator(case, f"axis {name}").integers(x.ndim)) for name, x in here.items()}
        moved = {name: jnp.moveaxis(x, 0, axes[name]) for name, x in here.items()}
        last = case.seed % 2 == 1
        found = jax.vmap(function, in_axes=({**axes, **dict.fromkeys(rest)},), out_axes=-last)(moved | rest)
        return jax.tree.map(lambda x: jnp.moveaxis(x, -last, 0), found)

    return one_more


def over_all_maps(case: Case, function: Callable) -> Callable:
    for level in reversed(range(len(case.maps))):
        function = mapped(case, level, function)
    return function


def loss(case: Case, outputs: Arrays, arrays: Arrays) -> Any:
    """A sum to be differentiated, in float32 at least."""
    total, fine = jnp.float32(0), jnp.promote_types(jnp.float32, outputs["out"].dtype)
    if case.lse != "alone":
        out = outputs["out"].astype(fine)
        count, cotangent = max(1, out.size), arrays["cotangent_out"]
        total += {
            "sum": lambda: out.sum(),
            "mean": lambda: out.sum() / count,
            "square": lambda: (out**2).sum() / count,
            "row": lambda: out[..., -1:, :].sum(),
            "rows": lambda: (out.sum(-1) * arrays["cotangent_lse"]).sum(),
            "columns": lambda: (out.sum(-2) * cotangent.sum(-2)).sum() / count,
            "entropy": lambda: -jax.nn.log_softmax(out)[..., 0].sum() * (out.shape[-1] / count),
            "weighted": lambda: (out * cotangent).sum(),
        }[case.loss]()
    if case.lse:
        lse = outputs["lse"]
        total += {
            "sum": lambda: lse.sum(),
            "square": lambda: (jnp.where(abs(lse) > MODEST, 0, lse) ** 2).sum(),
            "alone": lambda: (arrays["cotangent_lse"] * lse).sum(),
        }[case.lse]()
    return total


def dot(one: Any, other: Any) -> Any:
    return sum(jnp.vdot(one[name].astype(x.dtype), x) for name, x in other.items())


DIRECTIONS: dict[str, Callable] = {
    "forward": lambda f, objective, g, x, moves: f(x),
    "grad": lambda f, objective, g, x, moves: g(x),
    "value_and_grad": lambda f, objective, g, x, moves: jax.value_and_grad(objective)(x)[1],
    "jvp": lambda f, objective, g, x, moves: jax.jvp(f, (x,), (moves,))[1],
    "linearize": lambda f, objective, g, x, moves: jax.linearize(f, x)[1](moves),
    "fr": lambda f, objective, g, x, moves: jax.jvp(g, (x,), (moves,))[1],
    "rr": lambda f, objective, g, x, moves: jax.grad(lambda x: dot(g(x), moves))(x),
    "rf": lambda f, objective, g, x, moves: jax.grad(lambda x: jax.jvp(objective, (x,), (moves,))[1])(x),
    "jacfwd": lambda f, objective, g, x, moves: jax.jacfwd(f)(x)["out"],
    "jacrev": lambda f, objective, g, x, moves: jax.jacrev(f)(x)["out"],
    "hessian": lambda f, objective, g, x, moves: jax.hessian(objective)(x),
}


def results(once: Callable, case: Case) -> Callable:
    """The function ``(wanted arrays, other arrays, moves) -> results``, with the compilation of the case around it."""

    def one_call(arrays: Arrays) -> Arrays:
        return call(once, case, arrays)

    one_call = jax.checkpoint(one_call, policy=REMAT[case.remat]) if case.remat else one_call
    one_call = jax.jit(one_call) if case.jit in ("inner", "both") else one_call
    attend = over_all_maps(case, one_call)

    def run(x: Arrays, rest: Arrays, moves: Arrays) -> Any:
        def objective(x: Arrays) -> Any:
            return loss(case, attend(x | rest), rest)

        def own(arrays: Arrays) -> Any:  # the gradient of each call alone
            rest = {name: a for name, a in arrays.items() if name not in x}
            return jax.grad(lambda x: loss(case, one_call(x | rest), rest))({name: arrays[name] for name in x})

        def gradient(x: Arrays) -> Any:
            return over_all_maps(case, own)(x | rest) if case.inside else jax.grad(objective)(x)

        return DIRECTIONS[case.direction](lambda x: attend(x | rest), objective, gradient, x, moves)

    return run


def split(case: Case, arrays: Arrays, without: Any = ()) -> tuple[Arrays, Arrays]:
    """The arrays with respect to which is differentiated, and the others."""
    names = data.wanted(case, arrays)
    return ({name: arrays[name] for name in names},
            {name: x for name, x in arrays.items() if name not in (*names, *without)})  # fmt: skip


def flat(found: Any) -> Arrays:
    """Results by name; an entry of a Hessian has two."""
    return {f"{a} {b}" if isinstance(x, dict) else a: y
            for a, x in found.items() for b, y in (x.items() if isinstance(x, dict) else [("", x)])}  # fmt: skip


class Program:
    """A case's program, to be run on arrays that may differ where the compiler does not know them."""

    def __init__(self, attention: Callable, case: Case, arrays: Arrays):
        function, self.case = results(by_attention(attention), case), case
        self.known = data.in_dtypes(case, {name: x for name, x in arrays.items() if data.group(name) in case.known})

        def with_known(x: Arrays, rest: Arrays, moves: Arrays) -> Any:
            return function(x, rest | self.known, moves)

        self.run = jax.jit(with_known) if case.jit in ("outer", "both") else with_known

    def __call__(self, arrays: Arrays, moves: Arrays) -> Arrays:
        given = (*split(self.case, data.in_dtypes(self.case, arrays), self.known), data.in_dtypes(self.case, moves))
        return flat(jax.tree.map(np.asarray, self.run(*jax.tree.map(jnp.asarray, given))))


class Definition:
    """The right results of a case."""

    def __init__(self, case: Case, arrays: Arrays, moves: Arrays):
        self.case = dataclasses.replace(case, maps=("vmap",) * len(case.maps), remat="", jit="none")
        function = results(by_definition(arrays.get("rng")), self.case)
        with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
            self.program, found = jax.make_jaxpr(function, return_shape=True)(*self.given(arrays, moves))
        self.tree = jax.tree.structure(found)

    def given(self, arrays: Arrays, moves: Arrays) -> tuple[Arrays, ...]:
        return *split(self.case, arrays, ("rng",)), moves

    def __call__(self, arrays: Arrays, moves: Arrays, rounding: Any = numpy_program.EXACT) -> Arrays:
        found = numpy_program.run(self.program, jax.tree.leaves(self.given(arrays, moves)), rounding)
        return flat(jax.tree.unflatten(self.tree, found))
