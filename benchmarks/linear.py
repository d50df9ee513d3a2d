"""Show what `attendax.attention` needs: memory, FLOPs, compile time, and its error, each against its bound.

    python benchmarks/linear.py [--only memory flops compile error] [--output results/linear.json]

Float32, N = 4 heads of D = 64, causal unless said otherwise. Temporaries are XLA's own analysis of the compiled
program, exactly. FLOPs are those of the products, tile by tile as `explain` counts them (the tests count the tiles as
they run). Errors are root mean squares over the entries, against the specification in float64.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attendax import attention, explain, masks, scores, spec, writing
from machine import about

MIB = 2**20


def structs(S: int, N: int = 4, D: int = 64) -> list:
    return [jax.ShapeDtypeStruct((1, N, S, D), jnp.float32)] * 3


def options_for(name: str, S: int) -> dict:
    ids = np.arange(S, dtype=np.int32)[None] // 300
    return {
        "plain": {},
        "causal": {"mask": masks.causal()},
        "padding": {"mask": masks.padding(np.array([S - 5], np.int32))},
        "window 256": {"mask": masks.window(256, 0)},
        "segments": {"mask": masks.segments(ids, ids)},
        "softcap": {"mask": masks.causal(), "score_mod": scores.softcap(30.0)},
    }[name]


def directions(options: dict) -> dict:
    def attend(*arrays):
        return attention(*arrays, **options)

    grad = jax.grad(lambda *arrays: (attend(*arrays) ** 2).sum(), (0, 1, 2))
    return {
        "forward": attend,
        "gradient": grad,
        "jvp": lambda *arrays: jax.jvp(attend, arrays, arrays),
        "forward over reverse": lambda *arrays: jax.jvp(grad, arrays, arrays),
    }


def compiled(f, S: int):
    """The compiled program, and the seconds that compiling it took."""
    lowered = jax.jit(lambda *arrays: f(*arrays)).lower(*structs(S))
    start = time.perf_counter()
    program = lowered.compile()
    return program, time.perf_counter() - start


def memory() -> dict:
    """Temporaries at 4,096 and 16,384, and their ratio: at most 40 MiB for the gradient, and 4.5."""
    report = {}
    for name in ("plain", "causal", "padding", "window 256", "segments", "softcap"):
        for direction in directions({}):
            used = []
            for S in (4096, 16384):
                program, _ = compiled(directions(options_for(name, S))[direction], S)
                used.append(program.memory_analysis().temp_size_in_bytes)
            report[f"{name}, {direction}"] = {"bytes": used, "ratio": used[1] / used[0]}
            shown = f"{used[0] / MIB:8.1f} MiB  {used[1] / MIB:8.1f} MiB  ratio {used[1] / used[0]:.2f}"
            print(f"  {name + ', ' + direction:<36}{shown}", flush=True)
    return report


def flops() -> dict:
    """Operations of the forward at 16,384: a window of 256 takes at most 6 % of the full ones."""
    full = explain(*structs(16384)).flops
    report = {}
    windows = {
        "causal": masks.causal(),
        "window(256, 0)": masks.window(256, 0),
        "window(128, 128)": masks.window(128, 128),
    }
    for name, mask in windows.items():
        report[name] = explain(*structs(16384), mask=mask).flops / full
        print(f"  {name:<36}{report[name]:8.2%} of {full:,}")
    return report


def compile_time() -> dict:
    """Seconds of forward and backward at 16,384 against 1,024, in turns, median of five ratios: at most 1.5."""
    seconds: dict[int, list] = {1024: [], 16384: []}
    for _ in range(5):
        for S, times in seconds.items():
            jax.clear_caches()
            times.append(compiled(directions(options_for("causal", S))["gradient"], S)[1])
    ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
    medians = {S: statistics.median(times) for S, times in seconds.items()}
    print(f"  {medians[1024]:.2f} s at 1,024, {medians[16384]:.2f} s at 16,384, ratio {ratio:.2f}")
    return {"seconds": medians, "ratio": ratio}


def error() -> dict:
    """Error divided by that of the plain dense formula in the same dtype: at most 2 (L8); in float64 absolutely."""
    report = {}
    for S in (1024, 65536):
        for D in (3, 64, 128):
            for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
                rng = np.random.default_rng(S + D)
                arrays = [rng.normal(size=(1, 2, n, D)).astype(dtype) for n in (16, S, S)]
                exact = spec.attention(*(x.astype(np.float64) for x in arrays))
                rms = [
                    np.sqrt(np.mean((np.asarray(jax.jit(f)(*arrays)).astype(np.float64) - exact) ** 2))
                    for f in (attention, functools.partial(plain, dtype=dtype))
                ]
                name = f"S {S}, D {D}, {jnp.dtype(dtype).name}"
                report[name] = {"error": float(rms[0]), "ratio": float(rms[0] / rms[1])}
                print(f"  {name:<36}{rms[0]:10.2e}  {rms[0] / rms[1]:6.2f} of the plain formula", flush=True)
    return report


def plain(query, key, value, *, dtype):
    table = query @ key.swapaxes(-1, -2) / jnp.asarray(np.sqrt(query.shape[-1]), dtype)
    return jax.nn.softmax(table, axis=-1) @ value


FIGURES = {"memory": memory, "flops": flops, "compile": compile_time, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report = {"about": about()}
    for name in options.only:
        print(f"{name}: {FIGURES[name].__doc__}")
        if name == "error":
            jax.config.update("jax_enable_x64", True)
        report[name] = FIGURES[name]()
    if options.output:
        writing.write(options.output, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
