"""The contestants, each with its own layout of the arrays and its own arguments for a mask.

A contestant is built for a case and a measure: ``Program.run(arrays)`` computes it. JAX and NumPy are here, torch is in
``torch_contestants``. One that cannot do a case raises ``Unable`` with the reason; nothing is done in its place.
"""

import functools
import importlib
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import attention, spec
from harness import Unable
from program import Program, fits, refuse
from workload import CAP, WINDOW, Case


class Peer(NamedTuple):
    """A contestant: the package it needs, how it is built, and whether it is for a GPU only.

    ``stage(case, measure)`` gives the function that JAX compiles, its arguments, and the layout of its arrays.
    """

    package: str
    build: Callable[[Case, str], Program]
    gpu_only: bool = False
    stage: Callable[[Case, str], tuple[Callable, tuple, Callable]] | None = None  # of JAX only

    def is_installed(self) -> bool:
        return find_spec(self.package) is not None and not (self.gpu_only and jax.default_backend() == "cpu")


def build(name: str, case: Case, measure: str) -> tuple[Program, float, float, list[np.ndarray]]:
    """The program, the seconds of its first call with all that came before it and without, and the results.

    Raises:
        Unable: it cannot do the case.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    for module in (PEERS[name].package, "torch_contestants")[: 1 + (PEERS[name].package == "torch")]:
        importlib.import_module(module)  # which is not part of the first call
    start = time.perf_counter()
    program = PEERS[name].build(case, measure)
    ready = time.perf_counter()
    results = program.run(program.arrays)
    end = time.perf_counter()
    return program, end - start, end - ready, program.to_numpy(results)


# JAX: ``prepare(case)`` gives ``attend(arrays, extras)`` and the extras: arguments, not constants, of the program


def staged(
    prepare: Callable[[Case], tuple[Callable, Any]], case: Case, measure: str, *, swapped: bool
) -> tuple[Callable, tuple, Callable]:
    """The function that JAX compiles: a function, its arguments; and the layout of the arrays among them."""
    attend, extras = prepare(case)

    def own_layout(arrays: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
        # some keep the heads behind the sequence; a bias has the layout of the scores everywhere
        return tuple(jnp.asarray(np.swapaxes(x, 1, 2) if swapped and k < 3 else x) for k, x in enumerate(arrays))

    given = () if measure in ("forward", "jvp") else own_layout((case.cotangent,))
    given += own_layout(case.tangents) if measure in ("jvp", "hvp") else ()
    return in_direction(attend, measure), (own_layout(case.arrays), given, extras), own_layout


def of_jax(prepare: Callable[[Case], tuple[Callable, Any]], case: Case, measure: str, *, swapped: bool) -> Program:
    function, (arrays, given, extras), own_layout = staged(prepare, case, measure, swapped=swapped)

    def to_numpy(results: Any) -> list[np.ndarray]:
        flat = [np.asarray(x) for x in jax.tree.leaves(results)]
        bias = {"backward": 4, "hvp": 3}.get(measure)  # the place of its gradient
        return [np.swapaxes(x, 1, 2) if swapped and k != bias else x for k, x in enumerate(flat)]

    compiled = jax.jit(function).lower(arrays, given, extras).compile()
    used = compiled.memory_analysis().temp_size_in_bytes
    fits(used, "temporaries, by XLA's own analysis")
    run = lambda arrays: jax.block_until_ready(compiled(arrays, given, extras))  # noqa: E731
    return Program(run, arrays, to_numpy, own_layout, used, text=compiled.as_text)


def in_direction(attend: Callable, measure: str) -> Callable:
    """The function of (arrays, what else the measure needs, extras) that a measure times."""

    def backward(arrays, given, extras):
        out, pull = jax.vjp(lambda a: attend(a, extras), arrays)
        return out, *pull(given[0])[0]

    def hvp(arrays, given, extras):
        return jax.jvp(lambda a: backward(a, given[:1], extras)[1:], (arrays,), (given[1:],))[1]

    return {
        "forward": lambda arrays, given, extras: attend(arrays, extras),
        "backward": backward,
        "jvp": lambda arrays, given, extras: jax.jvp(lambda a: attend(a, extras), (arrays,), (given,)),
        "hvp": hvp,
    }[measure]


def jax_peer(package: str, prepare: Callable, *, swapped: bool = True, gpu_only: bool = False) -> Peer:
    build, stage = (functools.partial(f, prepare, swapped=swapped) for f in (of_jax, staged))
    return Peer(package, build, gpu_only, stage)


def ours(case: Case, implementation: str | None = None) -> tuple[Callable, Any]:
    rng = jax.random.key(0) if case.rate else None

    def attend(arrays, extras):
        query, key, value, *bias = arrays
        mask, score_mod, rng = extras
        options = {"mask": mask, "score_mod": score_mod, "bias": bias[0] if bias else None}
        options |= {"dropout_rate": case.rate, "dropout_rng": rng, "implementation": implementation}
        return attention(query, key, value, **options)

    pairs = case.shape.B * case.shape.N * case.shape.T * case.shape.S
    if implementation == "dense":
        fits(3 * pairs * case.arrays[0].itemsize, "at least three arrays of all scores")
    return attend, (case.mask, case.score_mod, rng)


def jax_nn(case: Case, implementation: str = "xla") -> tuple[Callable, Any]:
    none = "jax.nn.dot_product_attention has no "
    refuse(case, {"softcap": f"{none}score modifier", "dropout": f"{none}dropout"})
    windowed = (WINDOW, WINDOW) if case.shape.variant == "window" else None
    options = {"is_causal": case.shape.causal, "local_window_size": windowed, "implementation": implementation}
    extras = {"key_value_seq_lengths": case.lengths} if case.shape.variant == "padding" else {}
    if case.shape.variant == "segments":
        extras["mask"] = case.allowed
    if case.added is not None:
        extras["bias"] = case.added

    def attend(arrays, extras):
        query, key, value, *bias = arrays
        given = extras | ({"bias": bias[0]} if bias else {})
        return jax.nn.dot_product_attention(query, key, value, **options, **given)

    return attend, jax.tree.map(jnp.asarray, extras)


def flax(case: Case) -> tuple[Callable, Any]:
    from flax import linen

    none = "flax.linen.dot_product_attention has no "
    refuse(case, {"softcap": f"{none}score modifier", "grouped": f"{none}grouped heads"})

    def attend(arrays, extras):
        query, key, value, *bias = arrays
        options = dict(zip(("mask", "bias", "dropout_rng"), extras, strict=True))
        options |= {"bias": bias[0]} if bias else {}
        options |= {"dropout_rate": case.rate, "broadcast_dropout": False, "deterministic": not case.rate}
        return linen.dot_product_attention(query, key, value, **options)

    rng = jax.random.key(0) if case.rate else None
    return attend, (*jax.tree.map(jnp.asarray, (case.allowed, case.added)), rng)


def keras(case: Case) -> tuple[Callable, Any]:
    import keras

    if keras.backend.backend() != "jax":
        raise Unable(f"keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=jax")
    refuse(case, {"dropout": "keras.ops.dot_product_attention has no dropout"})
    refuse(case, {"softcap": "keras.ops.dot_product_attention caps scores on a TPU only"})

    def attend(arrays, extras):
        query, key, value, *bias = arrays
        mask, added = extras
        options = {"mask": mask, "bias": bias[0] if bias else added, "is_causal": case.shape.causal}
        return keras.ops.dot_product_attention(query, key, value, **options)

    mask = case.allowed if case.shape.variant in ("padding", "window", "segments") else None
    return attend, jax.tree.map(jnp.asarray, (mask, case.added))


def memory_efficient(case: Case) -> tuple[Callable, Any]:
    """Rabe and Staats 2021, as its authors' followers publish it for JAX, at its own chunk sizes."""
    from memory_efficient_attention import efficient_dot_product_attention_jax

    none = "memory-efficient-attention has no "
    refuse(case, {"dropout": f"{none}dropout", "grouped": f"{none}grouped heads"})
    rows, columns = min(1024, case.shape.T), min(4096, case.shape.S)
    if case.shape.T % rows or case.shape.S % columns:
        raise Unable(f"its chunks of {rows} queries and {columns} keys must divide the lengths")

    def cut(array, i, j):
        sizes = [min(size, most) for size, most in zip(array.shape[-2:], (rows, columns), strict=True)]
        return jax.lax.dynamic_slice(array, (0, 0, i, j), (*array.shape[:2], *sizes))

    def capped(i, j, weights, data):
        return CAP * jnp.tanh(weights / CAP)

    def attend(arrays, extras):
        query, key, value, *bias = arrays
        allowed, added = extras
        added = bias[0] if bias else added
        calls = {"query_chunk_size": rows, "key_chunk_size": columns, "calc_fn_data": (allowed, added)}
        if added is not None:
            calls["bias_calc_fn"] = lambda i, j, bias, weights, data: cut(data[1], i, j)
        if allowed is not None:
            calls["mask_calc_fn"] = lambda i, j, mask, weights, data: cut(data[0], i, j)
        if case.shape.variant == "softcap":
            calls["weights_calc_fn"] = capped
        return efficient_dot_product_attention_jax(query, key, value, **calls)

    return attend, jax.tree.map(jnp.asarray, (case.allowed, case.added))


def numpy(case: Case, measure: str) -> Program:
    """The specification itself, in the dtype of the case."""
    if measure not in ("forward", "backward"):
        raise Unable("the specification has the forward and the backward by definition, no other direction")
    B, N, _, T, S = case.shape[:5]
    arrays_of_scores = 7 if measure == "forward" else 12
    fits(arrays_of_scores * 4 * B * N * T * S, f"{arrays_of_scores} arrays of all scores")
    options = {"mask": case.mask, "score_mod": case.score_mod, "dropout_rate": case.rate}
    options |= {"dropout_rng": jax.random.key(0)} if case.rate else {}

    def run(arrays):
        query, key, value, *bias = arrays
        given = options | ({"bias": bias[0]} if bias else {})
        out = spec.attention(query, key, value, **given)
        if measure == "forward":
            return [out]
        grads = spec.attention_backward(case.cotangent, query, key, value, **given)
        return [out, *grads[: len(arrays)]]

    return Program(run, case.arrays, list, lambda arrays: arrays)


def torch_peer(function: str) -> Peer:
    def build_it(case: Case, measure: str) -> Program:
        import torch_contestants

        return getattr(torch_contestants, function)(case, measure)

    return Peer("torch", build_it)


def our_peer(implementation: str | None = None, *, gpu_only: bool = False) -> Peer:
    prepare = functools.partial(ours, implementation=implementation)
    return jax_peer("attendax", prepare, swapped=False, gpu_only=gpu_only)


PEERS = {
    "attendax": our_peer(),
    "attendax-tiles": our_peer("blockwise"),
    "attendax-dense": our_peer("dense"),
    "attendax-cudnn": our_peer("cudnn", gpu_only=True),
    "attendax-triton": our_peer("triton", gpu_only=True),
    "jax.nn": jax_peer("jax", jax_nn),
    "jax.nn-cudnn": jax_peer("jax", functools.partial(jax_nn, implementation="cudnn"), gpu_only=True),
    "flax": jax_peer("flax", flax),
    "keras": jax_peer("keras", keras),
    "memory-efficient": jax_peer("memory_efficient_attention", memory_efficient),
    "torch-sdpa": torch_peer("sdpa"),
    "torch-flex": torch_peer("flex"),
    "numpy": Peer("attendax", numpy),
}
OURS = "attendax"
REFERENCES = ("torch-sdpa", "jax.nn")  # against which the means are taken
SLOW_TO_COMPILE = ("torch-flex",)  # some ten seconds a case: not in the short grid
TILES = "attendax-tiles"  # the same as OURS on a CPU without the native kernel
