"""charliezchen/scaling-matrix-preconditioning#2: A paper has 1/D, its code 1/√D."""

from .parts import softmax

EXPECTED = ("scale", "1/D", "1/√D")


def a(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / query.shape[-1]) @ value


def b(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5) @ value
