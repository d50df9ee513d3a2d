"""allenai/allennlp#5360: T5 has no scale, other encoders have one; the same code was meant for both."""

from .parts import softmax

EXPECTED = ("scale", "by 1", "1/√D")


def a(query, key, value, position_bias=None):
    scores = query @ key.swapaxes(-1, -2)
    return softmax(scores if position_bias is None else scores + position_bias) @ value


def b(query, key, value, bias=None):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    return softmax(scores if bias is None else scores + bias) @ value
