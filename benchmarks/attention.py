"""Time the attention of `ops` beside its NumPy twin and, where they are installed, jax.nn and torch.

    python benchmarks/attention.py [--shapes NAME ...] [--rounds 7] [--output results/attention.json]

All contestants take turns within a round, so that a disturbance hits them alike; a figure is the median over rounds, a
ratio the median of the ratios within rounds. A contestant whose result is wrong is reported, not timed. Temporaries are
what XLA's own analysis of the compiled program says, exactly.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from shapes import SHAPES, Shape

from attendax import ops, spec

TOLERANCE = 1e-4  # float32 against float64, entries of order 1


def inputs(shape: Shape) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = (shape.T, shape.S, shape.S)
    return [rng.normal(size=(shape.B, shape.N, size, shape.D)).astype(np.float32) for size in sizes]


def jax_contestant(attend: Callable, shape: Shape, backward: bool) -> tuple[Callable, int]:
    """A call that waits for its result, and the bytes of its temporaries."""
    arrays = [jnp.asarray(x) for x in inputs(shape)]
    f = attend if not backward else jax.grad(lambda *a: (attend(*a) ** 2).sum(), argnums=(0, 1, 2))
    compiled = jax.jit(f).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays)), compiled.memory_analysis().temp_size_in_bytes


def contestants(shape: Shape, backward: bool) -> dict[str, tuple[Callable, int | None]]:
    mask = np.tril(np.ones((shape.T, shape.S), bool)) if shape.causal else None

    def ours(*arrays):
        return ops.attention(*arrays, mask=mask)

    def jax_nn(*arrays):
        swapped = (x.swapaxes(1, 2) for x in arrays)  # jax.nn keeps the heads behind the sequence
        return jax.nn.dot_product_attention(*swapped, is_causal=shape.causal).swapaxes(1, 2)

    arrays = inputs(shape)

    def numpy_spec():
        out = spec.attention(*arrays, mask=mask)
        return spec.attention_backward(2 * out, *arrays, mask=mask)[:3] if backward else out

    calls = {
        "attendax.ops": jax_contestant(ours, shape, backward),
        "jax.nn": jax_contestant(jax_nn, shape, backward),
        "attendax.spec (NumPy)": (numpy_spec, None),
    }
    if find_spec("torch"):
        calls["torch SDPA"] = (torch_call(shape, backward), None)
    return calls


def torch_call(shape: Shape, backward: bool) -> Callable:
    import torch

    tensors = [torch.from_numpy(x).requires_grad_(backward) for x in inputs(shape)]

    def call():
        out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=shape.causal)
        if not backward:
            return out.numpy()
        return [grad.numpy() for grad in torch.autograd.grad((out**2).sum(), tensors)]

    return call


def run(shape: Shape, backward: bool, rounds: int) -> dict:
    """Seconds, ratios to ``attendax.ops``, temporaries and largest error of every contestant."""
    exact = [x.astype(np.float64) for x in inputs(shape)]
    mask = np.tril(np.ones((shape.T, shape.S), bool)) if shape.causal else None
    wanted = spec.attention(*exact, mask=mask)
    wanted = spec.attention_backward(2 * wanted, *exact, mask=mask)[:3] if backward else wanted
    results, seconds = {}, {}
    calls = contestants(shape, backward)
    for name, (call, temporaries) in calls.items():
        pairs = zip(jax.tree.leaves(tuple(call())), jax.tree.leaves(tuple(wanted)), strict=True)
        error = max(float(np.abs(np.asarray(a) - b).max()) for a, b in pairs)
        results[name] = {"largest_error": error, "temporary_bytes": temporaries}
        if error <= TOLERANCE:
            seconds[name] = []
    for _ in range(rounds):
        for name in seconds:
            start = time.perf_counter()
            calls[name][0]()
            seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        ratios = [t / ours for t, ours in zip(times, seconds["attendax.ops"], strict=True)]
        results[name] |= {"seconds": statistics.median(times), "ratio_to_ops": statistics.median(ratios)}
    return results


def machine() -> dict:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__}
    if find_spec("torch"):
        from importlib.metadata import version

        versions["torch"] = version("torch")
    backend = jax.default_backend()
    return {"machine": platform.machine(), "devices": backend, "commit": commit.stdout.strip(), "versions": versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report = {"about": machine(), "results": {}}
    for name in options.shapes:
        for direction in ("forward", "forward+backward"):
            results = run(SHAPES[name], direction != "forward", options.rounds)
            report["results"][f"{name} {direction}"] = results
            print(f"{name} {direction}")
            for contestant, result in results.items():
                if "seconds" not in result:
                    print(f"  {contestant:<22} wrong by {result['largest_error']:.1e}: not timed")
                    continue
                memory = result["temporary_bytes"]
                shown = "" if memory is None else f"{memory / 2**20:8.1f} MiB"
                figures = f"{result['seconds'] * 1e3:9.2f} ms {result['ratio_to_ops']:7.2f} x ops"
                print(f"  {contestant:<22}{figures} {shown}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
