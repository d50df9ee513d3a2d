"""Mistakes that the cases of ``conformance.cases.calls`` catch first."""

from mistakes_in_determinism import at_first
from planted import Mistake


def refusal(case: str, old: str, new: str) -> Mistake:
    """A check that is weaker, or speaks of nothing."""
    return Mistake(f"refused: {case}", old, new)


MISTAKES = [
    at_first("refused: key width", "key = key[..., : query.shape[-1]]"),
    at_first("refused: value length", "key = key[..., : value.shape[-2], :]"),
    at_first("refused: batch of the keys", "if key.ndim == 4:",
        "    key, value = key[: len(query)], value[: len(query)]"),
    refusal("batch of 1 beside 2", "if query.shape[:-3] != key.shape[:-3]:",
        "if query.shape[:-3] != key.shape[:-3] and key.shape[:-3] != (1,):"),
    at_first("refused: heads that do not divide", "if query.ndim == 4 and query.shape[1] > key.shape[1] > 0:",
        "    group = -(-query.shape[1] // key.shape[1])",
        "    key, value = (np.repeat(x, group, axis=1)[:, : query.shape[1]] for x in (key, value))"),
    refusal("heads of the values", "if value.shape[:-2] != key.shape[:-2]:", "if value.shape[:-3] != key.shape[:-3]:"),
    refusal("integer arrays", "if query.dtype.name not in FLOATING:", "if query.dtype.kind in 'bcO':"),
    refusal("mixed dtypes", "if key.dtype != query.dtype or value.dtype != query.dtype:",
        "if key.dtype != value.dtype:"),
    refusal("mask of integers", "if mask.dtype != bool:", 'if mask.dtype.kind not in "bi":'),
    refusal("mask of floats", "if mask.dtype != bool:", 'if mask.dtype.kind in "iu":'),
    refusal("mask (B, T, S) where B = N", "if mask.ndim not in (2, len(shape)):", "if mask.ndim > len(shape):"),
    at_first("refused: mask of another length", "if mask is not None and 1 < mask.shape[-1] < key.shape[-2]:",
        "    more = np.zeros((*mask.shape[:-1], key.shape[-2] - mask.shape[-1]), bool)",
        "    mask = np.concatenate([mask, more], axis=-1) if mask.shape[-2] == query.shape[-2] else mask"),
    at_first("refused: mask of too few queries", "if mask is not None and 1 < mask.shape[-2] < query.shape[-2]:",
        "    rows = np.arange(query.shape[-2]).clip(max=mask.shape[-2] - 1)", "    mask = mask[..., rows, :]"),
    at_first("refused: mask (S, T)",
        "if mask is not None and mask.shape[-2:] == (key.shape[-2], query.shape[-2]) != mask.shape[:-3:-1]:",
        "    mask = mask.swapaxes(-1, -2)"),
    refusal("boolean bias", "if bias.dtype.name not in FLOATING:", 'if bias.dtype.kind in "iu":'),
    refusal("bias of another length", 'raise ValueError("bias has a shape other than the scores")',
        'raise ValueError("invalid argument")'),
    refusal("key length too long", "if (key_lengths > S).any():", "if (key_lengths > S).all():"),
    refusal("key length negative", "if (key_lengths < 0).any():", "if (key_lengths < 0).all():"),
    at_first("refused: key lengths of another batch",
        "key_lengths = None if key_lengths is None else key_lengths[: len(query)]"),
    at_first("refused: segment ids of another length", "if query_segment_ids is not None:",
        "    query_segment_ids = query_segment_ids[:, : query.shape[-2]]"),
    refusal("window to nowhere", "side < 0 for side in window)", "side < 0 for side in window[1:])"),
    refusal("softcap of 0", "not softcap > 0", "softcap < 0"),
    refusal("softcap negative", "not softcap > 0", "softcap == 0"),
    refusal("dropout rate above 1", "if not 0 <= dropout_rate <= 1:", "if dropout_rate < 0:"),
    refusal("dropout rate negative", "if not 0 <= dropout_rate <= 1:", "if dropout_rate > 1:"),
]  # fmt: skip
