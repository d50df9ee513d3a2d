"""The JAX program of a case, as users write it, for any attention with the signature of ``attendax.attention``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import data, masks, modifiers
from .case import Case
from .reference import EPSILON, MODEST

Arrays = dict[str, Any]
POLICIES = {
    "all": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse"),
}


def call(attention: Callable, case: Case, arrays: Arrays) -> Arrays:
    """One call, without maps."""
    q, k, v = (arrays[name] for name in ("query", "key", "value"))
    if case.layers:
        q, k, v = (x @ arrays[f"weights_{name}"] for name, x in (("query", q), ("key", k), ("value", v)))
    options: dict[str, Any] = {"scale": case.scale, "implementation": case.implementation}
    if case.mask is not None:
        options["mask"] = masks.build(case.mask, [arrays[name] for name in sorted(arrays) if name.startswith("mask")])
    if case.bias is not None:
        options["bias"] = arrays["bias"]
    if case.modifier is not None:
        given = [arrays[name] for name in sorted(arrays) if name.startswith("mod")]
        options["score_mod"] = modifiers.build(case.modifier, given)
    if case.dropout:
        options |= {"dropout_rate": case.dropout, "dropout_rng": arrays["rng"]}
    found = attention(q, k, v, **options, return_lse=bool(case.lse))
    out, lse = found if case.lse else (found, None)
    if case.layers:
        centred = out - out.mean(-1, keepdims=True)
        out = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return {"out": out, "lse": lse} if case.lse else {"out": out}


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
        total += _loss_of_out(case, outputs["out"].astype(fine), arrays)
    if case.lse:
        lse = outputs["lse"]
        if case.lse == "sum":
            total += lse.sum()
        elif case.lse == "square":
            total += (jnp.where(abs(lse) > MODEST, 0, lse) ** 2).sum()
        else:
            total += (arrays["cotangent_lse"] * lse).sum()
    return total


def _loss_of_out(case: Case, out: Any, arrays: Arrays) -> Any:
    count = max(1, out.size)
    if case.loss == "sum":
        return out.sum()
    if case.loss == "mean":
        return out.sum() / count
    if case.loss == "square":
        return (out**2).sum() / count
    if case.loss == "row":
        return out[..., -1:, :].sum()
    if case.loss == "rows":
        return (out.sum(-1) * arrays["cotangent_lse"]).sum()
    if case.loss == "columns":
        return (out.sum(-2) * arrays["cotangent_out"].sum(-2)).sum() / count
    if case.loss == "entropy":
        return -jax.nn.log_softmax(out)[..., 0].sum() * (out.shape[-1] / count)
    return (out * arrays["cotangent_out"]).sum()


def dot(one: Any, other: Any) -> Any:
    return sum(jnp.vdot(one[name].astype(x.dtype), x) for name, x in other.items())


def results(attention: Callable, case: Case, direction: str) -> Callable:
    """The function ``(wanted arrays, other arrays, moves) -> results``, with the compilation of the case around it."""

    def once(arrays):
        return call(attention, case, arrays)

    if case.remat:
        once = jax.checkpoint(once, policy=POLICIES[case.remat])
    if case.jit in ("inner", "both"):
        once = jax.jit(once)

    def outputs(x, rest):
        return over_all_maps(case, once)(x | rest)

    def objective(x, rest):
        return loss(case, outputs(x, rest), rest)

    def gradient(x, rest):
        if not case.inside:
            return jax.grad(objective)(x, rest)
        names = list(x)

        def own(arrays):
            rest = {name: a for name, a in arrays.items() if name not in names}
            return jax.grad(lambda x: loss(case, once(x | rest), rest))({name: arrays[name] for name in names})

        return over_all_maps(case, own)(x | rest)

    def run(x, rest, moves):
        f, g = (lambda x: outputs(x, rest)), (lambda x: gradient(x, rest))
        return DIRECTIONS[direction](f, lambda x: objective(x, rest), g, x, moves)

    return run


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


def arrays_in(case: Case, arrays: Arrays) -> Arrays:
    """As JAX gets them: floating ones in their dtype."""
    return {name: x.astype(data.storage(case, name)) if x.dtype == data.FINE else x for name, x in arrays.items()}


class Program:
    """A case's program, to be run on arrays that may differ where the compiler does not know them."""

    def __init__(self, attention: Callable, case: Case, arrays: Arrays):
        function = results(attention, case, case.direction)
        known = arrays_in(case, {name: arrays[name] for name in data.known(case, arrays)})
        self.case, self.names = case, data.wanted(case, arrays)

        def with_known(x, rest, moves):
            return function(x, rest | known, moves)

        self.known, self.run = known, jax.jit(with_known) if case.jit in ("outer", "both") else with_known

    def __call__(self, arrays: Arrays, moves: Arrays) -> Any:
        arrays, moves = arrays_in(self.case, arrays), arrays_in(self.case, moves)
        x = {name: jnp.asarray(arrays[name]) for name in self.names}
        rest = {name: jnp.asarray(a) for name, a in arrays.items() if name not in (*self.names, *self.known)}
        found = self.run(x, rest, {name: jnp.asarray(m) for name, m in moves.items()})
        return jax.tree.map(np.asarray, found)
