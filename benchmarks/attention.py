"""Time `attendax.attention` beside its dense twins, jax.nn and, where it is installed, torch.

    python benchmarks/attention.py [--shapes NAME ...] [--rounds 7] [--output results/attention.json]

All contestants take turns within a round, so that a disturbance hits them alike; a figure is the median over rounds, a
ratio the median of the ratios within rounds. A contestant whose result is wrong is reported, not timed, and so is one
that would need more than 12 GiB. The judge is the specification in float64; beyond 2^27 scores, which it cannot hold,
torch in float64, or nobody, which is said. Temporaries are what XLA's own analysis says, exactly.
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

from attendax import attention, masks, spec

TOLERANCE = 1e-4  # float32 against float64, entries of order 1
MOST_BYTES = 12 * 2**30
MOST_SCORES = 2**27
OURS = "attendax"


def inputs(shape: Shape) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = (shape.N, shape.T), (shape.G, shape.S), (shape.G, shape.S)
    return [rng.normal(size=(shape.B, heads, size, shape.D)).astype(np.float32) for heads, size in sizes]


def mask_of(shape: Shape):
    return masks.causal() if shape.causal else None


def jax_contestant(attend: Callable, shape: Shape, backward: bool) -> tuple[Callable | None, int]:
    """A call that waits for its result, or None where it would not fit, and the bytes of its temporaries."""
    arrays = [jnp.asarray(x) for x in inputs(shape)]
    f = attend if not backward else jax.grad(lambda *a: (attend(*a) ** 2).sum(), argnums=(0, 1, 2))
    compiled = jax.jit(f).lower(*arrays).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes
    return (lambda: jax.block_until_ready(compiled(*arrays))) if memory <= MOST_BYTES else None, memory


def contestants(shape: Shape, backward: bool) -> dict[str, tuple[Callable | None, int | None]]:
    mask = mask_of(shape)

    def ours(*arrays):
        return attention(*arrays, mask=mask)

    def dense(*arrays):
        return attention(*arrays, mask=mask, implementation="dense")

    def jax_nn(*arrays):
        swapped = (x.swapaxes(1, 2) for x in arrays)  # jax.nn keeps the heads behind the sequence
        return jax.nn.dot_product_attention(*swapped, is_causal=shape.causal).swapaxes(1, 2)

    calls = {name: jax_contestant(f, shape, backward) for name, f in ((OURS, ours), ("jax.nn", jax_nn))}
    if shape.B * shape.N * shape.T * shape.S <= MOST_SCORES // 4:
        calls["attendax dense"] = jax_contestant(dense, shape, backward)
        calls["attendax.spec (NumPy)"] = (lambda: by_specification(shape, backward, np.float32), None)
    if find_spec("torch"):
        calls["torch SDPA"] = (torch_call(shape, backward, np.float32), None)
    return calls


def by_specification(shape: Shape, backward: bool, dtype):
    arrays = [x.astype(dtype) for x in inputs(shape)]
    out = spec.attention(*arrays, mask=mask_of(shape))
    return spec.attention_backward(2 * out, *arrays, mask=mask_of(shape))[:3] if backward else out


def torch_call(shape: Shape, backward: bool, dtype) -> Callable:
    import torch

    tensors = [torch.from_numpy(x.astype(dtype)).requires_grad_(backward) for x in inputs(shape)]

    def call():
        options = {"is_causal": shape.causal, "enable_gqa": shape.G != shape.N}
        out = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
        if not backward:
            return out.numpy()
        return [grad.numpy() for grad in torch.autograd.grad((out**2).sum(), tensors)]

    return call


def judge(shape: Shape, backward: bool):
    """What is right, and who says so; or None and nobody."""
    if shape.B * shape.N * shape.T * shape.S <= MOST_SCORES:
        return by_specification(shape, backward, np.float64), "specification"
    if find_spec("torch"):
        return torch_call(shape, backward, np.float64)(), "torch in float64"
    return None, "nobody"


def run(shape: Shape, backward: bool, rounds: int) -> dict:
    """Seconds, ratios to ours, temporaries and largest error of every contestant."""
    wanted, by = judge(shape, backward)
    results, seconds = {}, {}
    calls = contestants(shape, backward)
    for name, (call, temporaries) in calls.items():
        results[name] = {"largest_error": None, "judged_by": by, "temporary_bytes": temporaries}
        if call is None:
            continue
        got = call()
        if wanted is not None:
            pairs = zip(jax.tree.leaves(tuple(got)), jax.tree.leaves(tuple(wanted)), strict=True)
            error = max(float(np.abs(np.asarray(a) - b).max()) for a, b in pairs)
            results[name]["largest_error"] = error
        if wanted is None or error <= TOLERANCE:
            seconds[name] = []
    for _ in range(rounds):
        for name in seconds:
            start = time.perf_counter()
            calls[name][0]()
            seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        ratios = [t / ours for t, ours in zip(times, seconds[OURS], strict=True)]
        results[name] |= {"seconds": statistics.median(times), "ratio": statistics.median(ratios)}
    return results


def shown(name: str, result: dict) -> str:
    memory = result["temporary_bytes"]
    if "seconds" not in result:
        error = result["largest_error"]
        why = f"would need {memory / 2**30:.1f} GiB" if error is None else f"wrong by {error:.1e}"
        return f"  {name:<22} {why}: not timed"
    used = "" if memory is None else f"{memory / 2**20:8.1f} MiB"
    return f"  {name:<22}{result['seconds'] * 1e3:9.2f} ms {result['ratio']:7.2f} x {OURS} {used}"


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
                print(shown(contestant, result), flush=True)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
