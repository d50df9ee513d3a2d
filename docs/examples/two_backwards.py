"""2. One training twice: gradients by jax.grad, and by the backward that is written by hand in NumPy.

Same weights, same rows, same optimiser, float64: two loss curves that lie on each other.

python docs/examples/two_backwards.py --picture two-backwards.svg
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sorting import batch

from attendax import ops, spec
from attendax.params import EncoderBlockParams

TOKENS, LENGTH, ROWS, HEADS = 16, 8, 16, 2


def weights(width: int, layers: int) -> dict:
    """NumPy weights, float64: a table of tokens, one of positions, the blocks, a head."""
    rng = np.random.default_rng(0)
    blocks = [spec.TransformerEncoderBlock(width, HEADS, 2 * width, activation="gelu", rng=rng) for _ in range(layers)]
    return {
        "token": rng.normal(0, 0.3, (TOKENS, width)),
        "position": spec.learned_positional_encoding(LENGTH, width, rng=rng),
        "blocks": [block.params for block in blocks],
        "head": rng.normal(0, 0.1, (width, TOKENS)),
    }


def by_autodiff(params: dict, ids: np.ndarray, wanted: np.ndarray) -> tuple[float, dict]:
    """The loss and its gradient, by JAX."""

    def loss(params):
        hidden = ops.add_positional_encoding(params["token"][ids], params["position"])
        hidden = ops.stack_encoder_blocks(hidden, params["blocks"], num_heads=HEADS, activation="gelu")
        scores = hidden @ params["head"]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), wanted[..., None], axis=-1)
        return -chosen.mean()

    return jax.value_and_grad(loss)(params)


def by_hand(params: dict, ids: np.ndarray, wanted: np.ndarray) -> tuple[float, dict]:
    """The loss and its gradient, in NumPy, every line of the backward undoing one of the forward."""
    blocks = [_block(weights) for weights in params["blocks"]]
    embedded = params["token"][ids]
    placed = spec.add_positional_encoding(embedded, params["position"])
    hidden = spec.stack_encoder_blocks(placed, blocks)
    weight = spec.softmax(hidden @ params["head"])
    loss = -np.log(np.take_along_axis(weight, wanted[..., None], axis=-1)).mean()

    grad_scores = (weight - np.eye(TOKENS)[wanted]) / wanted.size
    grad_head = np.einsum("btm,btk->mk", hidden, grad_scores)
    grad_placed, grad_blocks = spec.stack_encoder_blocks_backward(grad_scores @ params["head"].T, placed, blocks)
    grad_embedded, grad_position = spec.add_positional_encoding_backward(grad_placed, embedded, params["position"])
    grad_token = np.zeros_like(params["token"])
    np.add.at(grad_token, ids, grad_embedded)
    grads = [EncoderBlockParams(**grad) for grad in grad_blocks]
    return loss, {"token": grad_token, "position": grad_position, "blocks": grads, "head": grad_head}


def _block(params: EncoderBlockParams) -> spec.TransformerEncoderBlock:
    """The layer of the specification with these weights."""
    width, hidden = params.W1.shape
    block = spec.TransformerEncoderBlock(width, HEADS, hidden, activation="gelu", rng=0)
    block.set_params(params)
    return block


def curves(steps: int, *, width: int = 32, layers: int = 2) -> tuple[list[float], list[float]]:
    """The losses of both, step by step."""
    with jax.enable_x64(True):
        optimiser = optax.adam(3e-3)
        losses: tuple[list[float], list[float]] = ([], [])
        for loss_and_gradient, found in zip((jax.jit(by_autodiff), by_hand), losses, strict=True):
            params = weights(width, layers)
            state = optimiser.init(params)
            for number in range(steps):
                loss, grads = loss_and_gradient(params, *batch(number, rows=ROWS, length=LENGTH, tokens=TOKENS))
                found.append(float(loss))
                updates, state = optimiser.update(grads, state)
                params = jax.tree.map(np.asarray, optax.apply_updates(params, updates))
    return losses


def draw(autodiff: list[float], hand: list[float], path: str) -> None:
    """Both curves, and below them how far they are apart."""
    from matplotlib.figure import Figure

    figure = Figure((7, 3.6), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot(autodiff, color="#4c9fd8", linewidth=6, alpha=0.6, label="attendax.ops, gradient by jax.grad")
    top.plot(hand, color="#c23b22", linewidth=1.4, label="attendax.spec, backward written by hand in NumPy")
    top.set(ylabel="loss", title="An encoder learns to sort, twice")
    top.legend(frameon=False)
    below.semilogy(np.maximum(np.abs(np.subtract(autodiff, hand)), 1e-17), color="#555555", linewidth=1)
    below.set(xlabel="step", ylabel="difference", ylim=(1e-17, 1e-10))
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)


def main(argv: list[str] | None = None) -> float:
    """Run the example; returns the largest difference of the two losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--picture")
    args = parser.parse_args(argv)
    autodiff, hand = curves(args.steps, width=args.width, layers=args.layers)
    difference = float(np.abs(np.subtract(autodiff, hand)).max())
    print(f"loss {hand[0]:.3f} -> {hand[-1]:.3f} in {args.steps} steps; the two differ by {difference:.1e} at the most")
    if args.picture:
        draw(autodiff, hand, args.picture)
    return difference


if __name__ == "__main__":
    main()
