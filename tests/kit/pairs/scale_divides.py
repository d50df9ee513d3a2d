"""NVIDIA/Megatron-LM#848: norm_factor divides the scores, where others multiply by a scale."""

from .parts import softmax

EXPECTED = ("scale as given", "factor", "divisor")


def a(query, key, value, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return softmax(query @ key.swapaxes(-1, -2) * scale) @ value


def b(query, key, value, norm_factor=None):
    norm_factor = query.shape[-1] ** 0.5 if norm_factor is None else norm_factor
    return softmax(query @ key.swapaxes(-1, -2) / norm_factor) @ value
