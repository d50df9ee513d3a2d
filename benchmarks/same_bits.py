"""Show where the bits of a token depend on how many tokens there are, and what it costs that they do not.

    python benchmarks/same_bits.py [--rounds 31]

Each part of a layer, of some tokens, is held against the same tokens among 1,024. Then products and whole layers are
timed in turns, by the library and by XLA. Float32, under jit.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from attendax import ops
from attendax.ops import projections
from attendax.ops.projections import project

MOST = 1024
NUMBERS = (1, 2, 3, 4, 5, 8, 13, 16, 32, 64, 100, 128, 256, 512)
WEIGHTS = ((64, 64), (256, 1000), (768, 768), (768, 3072), (3072, 768))
TAKES = projections.library_takes


def in_pieces(x, W, rows=32):
    """The recipe of docs/same-bits.md: every product has so many rows, whatever there are."""
    pieces = jnp.pad(x, ((0, -len(x) % rows), (0, 0))).reshape(-1, rows, x.shape[1])
    return jax.lax.map(lambda piece: piece @ W, pieces).reshape(-1, W.shape[1])[: len(x)]


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, np.float32))


def others(function, x, *weights):
    """Numbers of tokens at which a bit is another one than among all, wherever the tokens stand."""
    run = jax.jit(function)
    whole = np.asarray(run(x, *weights))
    found = []
    for number in NUMBERS:
        starts = sorted({0, 7, MOST // 2 + 1, MOST - number} & set(range(MOST - number + 1)))
        parts = [np.asarray(run(x[start : start + number], *weights)) for start in starts]
        same = [(part == whole[s : s + number]).all() for part, s in zip(parts, starts, strict=True)]
        found += [] if all(same) else [number]
    return found


def parts():
    """The parts of a layer, by name."""
    ones, zeros = jnp.ones(768), jnp.zeros(768)
    x = drawn(MOST, 768)
    yield "layer norm by XLA's sums", lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), (x,)
    yield "layer norm of attendax", lambda x: ops.layer_norm(x, ones, zeros), (x,)
    yield "softmax by XLA's sum", jax.nn.softmax, (x,)
    yield "softmax of attendax", ops.softmax, (x,)
    yield "GELU", jax.nn.gelu, (x,)
    for depth, columns in WEIGHTS:
        arrays = drawn(MOST, depth), drawn(depth, columns)
        yield f"XLA ({depth}, {columns})", jnp.matmul, arrays
        yield f"XLA ({depth}, {columns}), pieces of 32", in_pieces, arrays
        yield f"attendax ({depth}, {columns})", project, arrays
        turned = drawn(MOST, columns), arrays[1]
        yield f"XLA ({depth}, {columns}) gradient", lambda g, W: g @ W.T, turned
        yield (
            f"attendax ({depth}, {columns}) gradient",
            lambda g, W: jax.linear_transpose(
                lambda x: project(x, W), jax.ShapeDtypeStruct((g.shape[0], W.shape[0]), g.dtype)
            )(g)[0],
            turned,
        )


def compiled(function, arrays, by_library):
    """The program with the products of the library, or with XLA's; run once."""
    projections.library_takes = TAKES if by_library else lambda *_: False
    jax.clear_caches()
    try:
        program = jax.jit(function).lower(*arrays).compile()
    finally:
        projections.library_takes = TAKES
    jax.block_until_ready(program(*arrays))
    return program


def ratio(one, other, arrays, rounds):
    """The median of the ratios of their times, and the seconds of both."""
    seconds = []
    for number in range(rounds):
        took = {}
        for k, program in ((0, one), (1, other))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            jax.block_until_ready(program(*arrays))
            took[k] = time.perf_counter() - start
        seconds.append(took)
    times = [statistics.median(took[k] for took in seconds) for k in (0, 1)]
    return statistics.median(took[0] / took[1] for took in seconds), *times


def layers():
    """The layers that are timed, by name."""
    for depth, columns in WEIGHTS:
        for number in (1, 8, 128, MOST):
            yield (
                f"product ({number}, {depth}) ({depth}, {columns})",
                project,
                (
                    drawn(number, depth),
                    drawn(depth, columns),
                ),
            )
    block = ops.init_encoder_block(jax.random.key(0), 768, 12)

    def attend(x, block):
        return ops.multi_head_attention(x, x, x, block.attention, num_heads=12)

    def run(x, block):
        return ops.encoder_block(x, block, num_heads=12, activation="gelu")

    gradient = jax.grad(lambda x, block: jnp.sum(run(x, block) ** 2), (0, 1))
    for shape in ((1, 1, 768), (1, 16, 768), (1, 128, 768), (8, 128, 768)):
        given = drawn(*shape), block
        yield f"multi_head_attention {shape}", attend, given
        yield f"encoder_block {shape}", run, given
        yield f"encoder_block {shape} gradient", gradient, given


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {len(jax.devices())} device; tokens at which bits are others than among {MOST}:")
    for name, function, arrays in parts():
        found = ", ".join(map(str, others(function, *arrays)))
        print(f"  {name:36}{found or 'none'}", flush=True)
    print("time by the library / by XLA, and both in ms:")
    for name, function, arrays in layers():
        both = [compiled(function, arrays, by_library) for by_library in (True, False)]
        told(name, *ratio(*both, arrays, args.rounds))
    print("time in pieces of 32 / at once, and both in ms:")
    for depth, columns in WEIGHTS:
        for number in (1, 128, MOST):
            arrays = drawn(number, depth), drawn(depth, columns)
            both = [compiled(function, arrays, False) for function in (in_pieces, jnp.matmul)]
            told(f"product ({number}, {depth}) ({depth}, {columns})", *ratio(*both, arrays, args.rounds))


def told(name, median, *seconds):
    """A line of a table."""
    print(f"  {name:48}{median:5.2f}" + "".join(f"{1e3 * x:10.3f}" for x in seconds), flush=True)


if __name__ == "__main__":
    main()
