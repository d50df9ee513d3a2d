"""Models of JAX: a small decoder as a pure function, and the same with one piece that is wrong."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from . import Entry

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 40, 16, 2, 2, 160
DRAWN = np.random.default_rng(0)


def drawn(*shape, scale=0.3):
    return jnp.asarray(DRAWN.standard_normal(shape) * scale, jnp.float32)


PARAMS = {
    "embed": drawn(VOCABULARY, WIDTH, scale=1.0),
    "place": drawn(LONGEST, WIDTH, scale=1.0),
    "layers": [{"qkv": drawn(WIDTH, 3 * WIDTH), "out": drawn(WIDTH, WIDTH), "up": drawn(WIDTH, 2 * WIDTH),
                "down": drawn(2 * WIDTH, WIDTH)} for _ in range(LAYERS)],
    "head": drawn(WIDTH, VOCABULARY),
}  # fmt: skip


def normed(x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def rotated(x, positions):
    """Rotary encoding of (B, T, N, D) at positions (B, T)."""
    half = x.shape[-1] // 2
    speeds = 100.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, :, None, None] * speeds[None, None, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1)


def causal(places, keys):
    """Which keys each query may look at by its place, (B, T, S)."""
    return keys[:, None, :] <= places[:, :, None]


def windowed(width, places, keys):
    return causal(places, keys) & (keys[:, None, :] > places[:, :, None] - width)


def everything(places, keys):
    return jnp.ones((*places.shape, keys.shape[1]), bool)


def beside(visible, mask, segment_ids):
    """The mask of padding and of segments beside that of places; no row is left without keys."""
    if mask is not None:
        visible = visible & mask[:, None, :] | jnp.eye(visible.shape[1], dtype=bool)[None]
    if segment_ids is not None:
        visible = visible & (segment_ids[:, None, :] == segment_ids[:, :, None])
    return visible


def weighed(query, key, value, visible):
    scores = jnp.einsum("btnd,bsnd->bnts", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e30), -1)
    return jnp.einsum("bnts,bsnd->btnd", weights, value)


def split(x):
    return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS)


def layer(params, x, positions, visible, cache=None, weigh=weighed, write=None, norm=normed, heads=split, turn=rotated):
    query, key, value = map(heads, jnp.split(norm(x) @ params["qkv"], 3, -1))
    if turn:
        query, key = turn(query, positions), turn(key, positions)
    if cache is not None:
        cache = [write(kept, new, positions) for kept, new in zip(cache, (key, value), strict=True)]
        key, value = cache
    found = weigh(query, key, value, visible)
    x = x + found.reshape(x.shape) @ params["out"]
    return x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"], cache


def counted(tokens):
    return jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)


def decoder(order=causal, join=beside, rotary=True, **pieces):
    """A model as a function of tokens and keywords."""
    pieces = pieces if rotary else pieces | {"turn": None}

    def apply(tokens, mask=None, segment_ids=None, positions=None):
        positions = counted(tokens) if positions is None else positions
        x = PARAMS["embed"][tokens]
        x = x if rotary else x + PARAMS["place"][positions]
        visible = join(order(counted(tokens), counted(tokens)), mask, segment_ids)
        for params in PARAMS["layers"]:
            x = layer(params, x, positions, visible, **pieces)[0]
        return normed(x) @ PARAMS["head"]

    return apply


def by_rows(kept, new, positions):
    return kept.at[jnp.arange(len(kept))[:, None], positions].set(new)


def cached(order=causal, write=by_rows, place=None, **pieces):
    """Functions ``init``, ``step`` and ``reorder``."""
    place = place or (lambda at, tokens: at + counted(tokens))

    def init(batch, room):
        empty = jnp.zeros((batch, room, HEADS, WIDTH // HEADS), jnp.float32)
        return {"layers": [[empty, empty] for _ in range(LAYERS)], "at": 0}

    def step(tokens, cache, positions=None):
        x, kept = PARAMS["embed"][tokens], []
        positions = place(cache["at"], tokens) if positions is None else positions
        keys = jnp.broadcast_to(
            jnp.arange(cache["layers"][0][0].shape[1])[None], (len(tokens), cache["layers"][0][0].shape[1])
        )
        for params, slots in zip(PARAMS["layers"], cache["layers"], strict=True):
            x, slots = layer(params, x, positions, order(positions, keys), slots, write=write, **pieces)
            kept.append(slots)
        return normed(x) @ PARAMS["head"], {"layers": kept, "at": cache["at"] + tokens.shape[1]}

    def reorder(cache, rows):
        return cache | {"layers": jax.tree.map(lambda x: x[rows], cache["layers"])}

    return init, step, reorder


SAID = {"vocabulary": VOCABULARY, "causal": True, "positions": "rotary", "layers": LAYERS, "longest": LONGEST}


def with_cache(**pieces):
    return decoder(), SAID | {"cache": cached(**pieces)}


def of_attendax():
    """An encoder of this project: tokens, and a mask of padding."""
    from attendax import encoders

    config = encoders.EncoderConfig(
        vocab_size=VOCABULARY,
        max_positions=LONGEST,
        num_token_types=1,
        d_model=WIDTH,
        num_heads=HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
    )
    params = encoders.init_encoder(jax.random.key(0), config)

    def apply(tokens, mask=None):
        return encoders.encode(tokens, params, config=config, mask=mask)

    return apply


# what is wrong


def inverted_order(places, keys):
    """The comparison of a block mask the other way round."""
    return keys[:, None, :] >= places[:, :, None]


def one_block_ahead(places, keys):
    """Blocks of 64 are masked as wholes: within one, a query sees all."""
    return keys[:, None, :] // 64 <= places[:, :, None] // 64 if keys.shape[1] > 64 else causal(places, keys)


def heads_as_rows(x):
    """Heads are cut out of the memory as it lies, without moving their axis."""
    return jnp.swapaxes(x.reshape(x.shape[0], HEADS, x.shape[1], WIDTH // HEADS), 1, 2)


def normed_over_time(x):
    """A norm over every axis but that of the batch."""
    x = x - x.mean((1, 2), keepdims=True)
    return x / jnp.sqrt((x * x).mean((1, 2), keepdims=True) + 1e-5)


def normed_over_batch(x):
    x = x - x.mean((0, 2), keepdims=True)
    return x / jnp.sqrt((x * x).mean((0, 2), keepdims=True) + 1e-5)


def first_key_alone(places, keys):
    """The triangle of one query and many keys has a single column."""
    count = places.shape[1]
    visible = causal(places, keys)
    return visible & jnp.tri(count, keys.shape[1], dtype=bool)[None]


def window_above(width, places, keys):
    """The diagonal of the window with the wrong sign: it leaves nothing out."""
    return causal(places, keys) & (keys[:, None, :] > places[:, :, None] - places.shape[1] - width)


def rotating(width):
    """A cache that keeps the last ``width - 1`` keys, one fewer than the window."""

    def order(places, keys):
        return windowed(width - 1, places, keys)

    return order


def same_place(at, tokens):
    """Every token of a chunk is rotated as its first."""
    return jnp.broadcast_to(jnp.full((1, 1), at), tokens.shape)


def written_at(kept, new, positions):
    at = positions[0, 0]
    return jax.lax.dynamic_update_slice_in_dim(kept, new, at, 1)


def from_zero(positions_of):
    """A step that rotates each token as the first: keys are written where they belong."""

    def turn(x, positions):
        return rotated(x, counted(x[..., 0, 0]))

    return turn


def never_empty(order, places, keys):
    """The whole cache is seen: what was not written yet, too."""
    return order(places, keys) | (keys[:, None, :] > places[:, -1:, None])


def ids_as_mask(visible, mask, segment_ids):
    """Ids are clamped to 0 and 1, and taken for a mask."""
    return beside(visible, mask if segment_ids is None else segment_ids > 0, None)


BROKEN = [
    Entry("an order that is inverted", lambda: decoder(inverted_order), SAID, "future", "tilde-research/nsa-release#3"),
    Entry("blocks of 64", lambda: decoder(one_block_ahead), SAID, "future", "tenstorrent/tt-metal#48899"),
    Entry("heads cut as they lie", lambda: decoder(heads=heads_as_rows), SAID, "future", "reczoo/FuxiCTR#30"),
    Entry("a norm over time", lambda: decoder(norm=normed_over_time), SAID, "future", ""),
    Entry("a norm over the batch", lambda: decoder(norm=normed_over_batch), SAID, "batch", ""),
    Entry("the first key alone", lambda: with_cache(order=first_key_alone), {}, "cache", "google/flax#5591"),
    Entry("every step rotated as the first", lambda: with_cache(turn=from_zero(counted)), {}, "cache",
          "Blaizzy/mlx-vlm#1983"),
    Entry("a chunk rotated as its first", lambda: with_cache(place=same_place, write=written_at), {}, "cache",
          "jundot/omlx#2363"),
    Entry("empty places are seen", lambda: with_cache(order=functools.partial(never_empty, causal)), {}, "cache",
          "huggingface/transformers#48809"),
    Entry("a window that leaves nothing out", lambda: decoder(functools.partial(window_above, 4)), SAID | {"window": 4},
          "window", "huggingface/transformers#41228"),
    Entry("a cache one short of the window",
          lambda: (decoder(functools.partial(windowed, 4)), SAID | {"window": 4, "cache": cached(rotating(4))}), {},
          "cache", "ml-explore/mlx-lm#390"),
    Entry("ids taken for a mask", lambda: decoder(join=ids_as_mask), SAID, "packing", "allenai/open-instruct#669"),
]  # fmt: skip
SOUND = [
    Entry("decoder", decoder, SAID),
    Entry("decoder with learned positions", lambda: decoder(rotary=False), SAID | {"positions": "absolute"}),
    Entry("decoder with a window and its cache",
          lambda: (decoder(functools.partial(windowed, 4)),
                   SAID | {"window": 4, "cache": cached(functools.partial(windowed, 4))}), {}),
    Entry("encoder", lambda: decoder(everything), SAID | {"causal": False}),
    Entry("decoder without positions", lambda: decoder(turn=None), SAID | {"positions": "none"}),
    Entry("decoder with a cache", with_cache, {}),
    Entry("encoder of attendax", of_attendax, SAID | {"causal": False, "positions": "absolute"}),
]  # fmt: skip
