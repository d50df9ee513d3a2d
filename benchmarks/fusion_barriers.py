"""Show what the fusion barriers of ``kernels/numerics.py`` cost: the same programs with them and without, in turns.

    python benchmarks/fusion_barriers.py [--rounds 21]

Without them some results may be wrong (docs/xla-faults.md); only time, compile time (CPU seconds) and XLA's count of
temporaries are compared. Float32.
"""

import argparse
import statistics
import time

import jax
import numpy as np

from attendax import attention, masks
from attendax.kernels import programs

CASES = {
    "(4, 12, 128, 64)": ((4, 12, 128, 64), None),
    "(4, 12, 128, 64) padding": ((4, 12, 128, 64), masks.padding(np.array([128, 100, 90, 60]))),
    "(1, 12, 1024, 64) causal": ((1, 12, 1024, 64), masks.causal()),
    "(1, 4, 4096, 64) causal": ((1, 4, 4096, 64), masks.causal()),
    "(1, 8, 2048, 64)": ((1, 8, 2048, 64), None),
}
BARRIER = programs.fusion_barrier


def compiled(function, arrays, fusion_barrier):
    """The program, run once, and the CPU seconds that compiling it took."""
    programs.fusion_barrier = BARRIER if fusion_barrier else lambda f, *arrays: f(*arrays)
    jax.clear_caches()
    try:
        start = time.process_time()
        program = jax.jit(function).lower(*arrays).compile()
        seconds = time.process_time() - start
    finally:
        programs.fusion_barrier = BARRIER
    jax.block_until_ready(program(*arrays))
    return program, seconds


def timed(program, arrays):
    start = time.perf_counter()
    jax.block_until_ready(program(*arrays))
    return time.perf_counter() - start


def compare(function, arrays, rounds):
    """The median of the ratios with / without; and for each: compile seconds, MiB of temporaries."""
    both = [compiled(function, arrays, fusion_barrier) for fusion_barrier in (True, False)]
    ratios = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        seconds = {k: timed(both[k][0], arrays) for k in order}
        ratios.append(seconds[0] / seconds[1])
    used = [program.memory_analysis().temp_size_in_bytes / 2**20 for program, _ in both]
    return statistics.median(ratios), [seconds for _, seconds in both], used


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    print("time with / without, compile s with and without, MiB with and without")
    for name, (shape, mask) in CASES.items():
        rng = np.random.default_rng(0)
        query, key, value, cotangent = (jax.numpy.asarray(rng.normal(size=shape), "float32") for _ in range(4))

        def forward(*arrays, mask=mask):
            return attention(*arrays, mask=mask)

        def gradient(cotangent, *arrays, forward=forward):
            return jax.vjp(forward, *arrays)[1](cotangent)

        for what, function, arrays in (
            ("forward", forward, (query, key, value)),
            ("gradient", gradient, (cotangent, query, key, value)),
        ):
            ratio, (on, off), (more, less) = compare(function, arrays, rounds)
            print(f"{name:25s} {what:8s}  {ratio:5.2f}   {on:5.2f} {off:5.2f}   {more:5.1f} {less:5.1f}", flush=True)


if __name__ == "__main__":
    main()
