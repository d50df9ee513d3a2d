"""5. Curvature: the Hessian of an encoder's loss times a vector, through the fast attention, in memory O(T).

Other fast attentions are a ``custom_vjp``, on which forward over reverse raises. The example computes the largest
curvature of the loss by power iteration. Then it computes the influence of one training text on the loss of another
(Koh and Liang 2017), with the Hessian inverted by conjugate gradients.

python docs/examples/curvature.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from attendax.encoders import EncoderConfig, encode, init_encoder


def main(argv: list[str] | None = None) -> float:
    """Run the example; returns how far the product is from a finite difference of gradients, relative to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args(argv)
    config = EncoderConfig(
        100, args.tokens, 0, args.width, 4, 2 * args.width, args.layers, norm="pre", positions="rotary"
    )
    params = jax.tree.map(lambda x: x.astype(float), init_encoder(jax.random.key(0), config))  # as JAX is set
    ids = np.random.default_rng(0).integers(0, 100, (4, args.tokens)).astype(np.int32)

    def loss(params, share):
        """The next token, from the table of tokens; ``share`` is what each text counts."""
        scores = encode(ids, params, config=config) @ params.embeddings.token.T
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores[:, :-1]), ids[:, 1:, None], axis=-1)
        return -share @ chosen.mean(axis=(1, 2))

    gradient = jax.jit(jax.grad(loss))
    alike, alone = np.full(4, 0.25), np.eye(4)

    @jax.jit
    def times_hessian(params, vector):
        """Forward over reverse: one pass, as much memory as a gradient."""
        return jax.jvp(lambda p: jax.grad(loss)(p, alike), (params,), (vector,))[1]

    def dot(a, b):
        return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

    def scaled(vector, factor):
        return jax.tree.map(lambda x: factor * x, vector)

    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    vector = jax.tree.unflatten(structure, [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
    vector = scaled(vector, dot(vector, vector) ** -0.5)
    product = times_hessian(params, vector)
    step = 0.1 if vector.embeddings.token.dtype == jnp.float32 else 1e-3  # above the noise of the gradients
    ahead, behind = (gradient(jax.tree.map(lambda p, v, s=s: p + s * v, params, vector), alike) for s in (step, -step))
    stencil = jax.tree.map(lambda a, b: (a - b) / (2 * step), ahead, behind)
    off = jax.tree.map(jnp.subtract, product, stencil)
    error = float((dot(off, off) / dot(product, product)) ** 0.5)
    print(f"Hessian times vector: {error:.1e} from a finite difference of gradients, relative to its length")

    for _ in range(args.rounds):
        product = times_hessian(params, vector)
        largest = dot(vector, product)
        vector = scaled(product, dot(product, product) ** -0.5)
    print(f"largest curvature after {args.rounds} rounds: {largest:.4f}")

    one, other = (gradient(params, alone[k]) for k in (0, 1))
    damping = 0.1 * jnp.abs(largest)  # the Hessian of a network is not positive

    def damped(v):
        return jax.tree.map(lambda h, x: h + 2 * damping * x, times_hessian(params, v), v)

    solved, _ = jax.scipy.sparse.linalg.cg(damped, one, maxiter=args.rounds)
    influence = [-float(dot(gradient_of, solved)) for gradient_of in (other, one)]
    print(f"influence of text 1 on the loss of text 2: {influence[0]:.4f}; on its own: {influence[1]:.4f}")
    return error


if __name__ == "__main__":
    main()
