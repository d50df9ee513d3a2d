"""Models of keras, of vectors: a small encoder or decoder, and the same with one piece that is wrong."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import ops

from . import Entry

WIDTH, HEADS, LONGEST = 16, 2, 160


def triangle(length):
    """(1, T, T), True = may look."""
    places = ops.arange(length)
    return (places[None, :] <= places[:, None])[None]


class Attention(keras.layers.Layer):
    """Self-attention with heads folded into the batch; ``visible`` is (B, T, S)."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = keras.layers.Dense(3 * WIDTH), keras.layers.Dense(WIDTH)

    def folded(self, x):
        """(B, T, M) -> (B * N, T, M / N), the heads of a text side by side."""
        x = ops.reshape(x, (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, x.shape[1], WIDTH // HEADS))

    def unfolded(self, x, batch):
        x = ops.reshape(x, (batch, HEADS, x.shape[1], WIDTH // HEADS))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, x.shape[2], WIDTH))

    def repeated(self, visible):
        """For the heads of a text side by side."""
        return ops.repeat(visible, HEADS, axis=0)

    def weights(self, scores):
        return ops.softmax(scores, axis=-1)

    def call(self, x, visible=None):
        query, key, value = (self.folded(part) for part in ops.split(self.qkv(x), 3, axis=-1))
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) * (WIDTH // HEADS) ** -0.5
        if visible is not None:
            scores = ops.where(self.repeated(visible), scores, -1e9)
        return self.out(self.unfolded(ops.matmul(self.weights(scores), value), x.shape[0]))


class Model(keras.Model):
    """Two layers of attention; with ``causal`` a decoder."""

    attention = Attention

    def __init__(self, causal=False):
        keras.utils.set_random_seed(0)
        super().__init__()
        self.causal = causal
        self.place = keras.layers.Embedding(LONGEST, WIDTH)
        self.layers_of_attention = [self.attention() for _ in range(2)]
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.head = keras.layers.Dense(5)
        self(np.zeros((1, 2, WIDTH), "float32"))

    def visible(self, x, mask):
        length = x.shape[1]
        visible = triangle(length) if self.causal else ops.ones((1, length, length), "bool")
        if mask is not None:
            visible = visible & mask[:, None, :] | ops.eye(length, dtype="bool")[None]
        return ops.broadcast_to(visible, (x.shape[0], length, length))

    def before(self, x):
        return x + self.place(ops.arange(x.shape[1]))[None]

    def call(self, x, mask=None, training=False):
        visible = self.visible(x, mask)
        x = self.before(x)
        for attention, norm in zip(self.layers_of_attention, self.norms, strict=True):
            x = x + attention(norm(x), visible=visible)
        return self.head(x)


class Lengths(Model):
    """Told of padding by lengths."""

    def real(self, x, lengths):
        return ops.arange(x.shape[1])[None, :] < lengths[:, None]

    def call(self, x, lengths=None, training=False):
        return super().call(x, mask=None if lengths is None else self.real(x, lengths))


class Shipped(keras.Model):
    """The layer of keras itself."""

    def __init__(self, causal):
        keras.utils.set_random_seed(0)
        super().__init__()
        self.causal = causal
        self.attention, self.head = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS), keras.layers.Dense(5)
        self(np.zeros((1, 2, WIDTH), "float32"))

    def call(self, x, mask=None, training=False):
        given = (
            {} if mask is None else {"attention_mask": ops.broadcast_to(mask[:, None, :], (*mask.shape, mask.shape[1]))}
        )
        return self.head(x + self.attention(x, x, use_causal_mask=self.causal, **given))


ENCODER = {
    "inputs": "vectors",
    "width": WIDTH,
    "causal": False,
    "positions": "absolute",
    "longest": LONGEST,
    "layers": 2,
}
DECODER = ENCODER | {"causal": True}


# what is wrong


class ScoresWithoutMask(Model):
    """The path that gives the scores, too, is not given the mask, which only the fused one needs no array for."""

    class attention(Attention):
        def call(self, x, visible=None):
            return super().call(x)


class MaskNotPassedOn(Model):
    """The mask is taken, and the layers are called without it."""

    def visible(self, x, mask):
        return super().visible(x, None)


class MaskOfAnotherHead(Model):
    """Heads are side by side for the mask, and texts for the scores."""

    class attention(Attention):
        def folded(self, x):
            x = ops.reshape(x, (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS))
            return ops.reshape(ops.transpose(x, (2, 0, 1, 3)), (-1, x.shape[1], WIDTH // HEADS))

        def unfolded(self, x, batch):
            x = ops.reshape(x, (HEADS, batch, x.shape[1], WIDTH // HEADS))
            return ops.reshape(ops.transpose(x, (1, 2, 0, 3)), (batch, x.shape[2], WIDTH))


class LooksAround(Model):
    """A convolution before the attention, padded on both sides."""

    def before(self, x):
        x = super().before(x)
        if not hasattr(self, "around"):
            self.around = keras.layers.Conv1D(WIDTH, 3, padding="same")
        return x + self.around(x)


class OneTooMany(Lengths):
    """Padding begins one after the last token."""

    def real(self, x, lengths):
        return ops.arange(x.shape[1])[None, :] < lengths[:, None] + 1


class SoftmaxOfTheBatch(Model):
    """The first axis is taken for that of the keys."""

    class attention(Attention):
        def weights(self, scores):
            return ops.softmax(scores, axis=0)


BROKEN = [
    Entry(
        "scores without the mask", lambda: ScoresWithoutMask(causal=True), DECODER, "future", "keras-team/keras#23038"
    ),
    Entry("looks around itself", lambda: LooksAround(causal=True), DECODER, "future", "lucidrains/magvit2-pytorch#27"),
    Entry("mask not passed on", MaskNotPassedOn, ENCODER, "padding", "keras-team/keras-hub#2220"),
    Entry("mask of another head", MaskOfAnotherHead, ENCODER, "padding", "lsdefine/attention-is-all-you-need-keras#36"),
    Entry("padding one late", OneTooMany, ENCODER, "padding", "ajhalthor/Transformer-Neural-Network#15"),
    Entry("softmax of the batch", SoftmaxOfTheBatch, ENCODER, "batch", "PetrochukM/PyTorch-NLP#2"),
]
SOUND = [
    Entry("encoder", Model, ENCODER),
    Entry("decoder", lambda: Model(causal=True), DECODER),
    Entry("encoder with lengths", Lengths, ENCODER),
    Entry("layer of keras, causal", lambda: Shipped(causal=True), DECODER | {"positions": None, "layers": 1}),
]
