"""1. An encoder from scratch: it learns to sort, with optax, in two minutes on two cores.

python docs/examples/encoder_from_scratch.py --picture loss.png --checkpoint DIR
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sorting import batch

from attendax.encoders import EncoderConfig, encode, init_encoder

TOKENS, LENGTH, ROWS = 32, 12, 64


def train(steps: int, *, width: int = 64, layers: int = 2, say=print) -> tuple[dict, list[float], float]:
    """Train, and say how often a token stands in its right place in 512 rows that were not trained on."""
    config = EncoderConfig(
        TOKENS, LENGTH, 0, width, 4, 2 * width, layers, norm="pre", activation="geglu", norm_kind="rms", final_norm=True
    )
    encoder = init_encoder(jax.random.key(0), config)
    params = {"encoder": encoder, "head": 0.02 * jax.random.normal(jax.random.key(1), (width, TOKENS))}
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, max(1, steps // 10), steps)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    state = optimiser.init(params)

    def scores(params, ids):
        return encode(ids, params["encoder"], config=config) @ params["head"]

    @jax.jit
    def step(params, state, ids, wanted):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(scores(params, ids), wanted).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for number in range(steps):
        params, state, value = step(params, state, *batch(number, rows=ROWS, length=LENGTH, tokens=TOKENS))
        losses.append(float(value))
        if number % 100 == 0:
            say(f"step {number:5d}  loss {losses[-1]:.3f}")
    ids, wanted = batch(10**6, rows=512, length=LENGTH, tokens=TOKENS)
    accuracy = float(jnp.mean(jnp.argmax(jax.jit(scores)(params, ids), axis=-1) == wanted))
    say(f"after {steps} steps: {accuracy:.1%} of the tokens of new rows in their places")
    return params, losses, accuracy


def draw(losses: list[float], path: str) -> None:
    """The loss, on a logarithmic scale."""
    from matplotlib.figure import Figure

    figure = Figure((6, 3), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(losses)
    axes.set(xlabel="step", ylabel="cross entropy", title="Learning to sort")
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> float:
    """Run the example; returns the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--picture")
    parser.add_argument("--checkpoint", help="a folder that is not there yet; written by orbax")
    args = parser.parse_args(argv)
    params, losses, accuracy = train(args.steps, width=args.width, layers=args.layers)
    if args.picture:
        draw(losses, args.picture)
    if args.checkpoint:
        import orbax.checkpoint

        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(args.checkpoint).absolute(), params)
            checkpointer.wait_until_finished()
            found = checkpointer.restore(Path(args.checkpoint).absolute(), jax.tree.map(np.zeros_like, params))
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True))
    return accuracy


if __name__ == "__main__":
    main()
