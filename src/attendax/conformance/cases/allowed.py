"""Pairs of a query and a key that it may look at, by all the options of a call that say so."""

import numpy as np

from .case import Inputs


def allowed_pairs(inputs: Inputs) -> np.ndarray:
    """Pairs of a query and a key that it may look at, broadcastable to (..., N, T, S); a bias of -inf is not asked."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    T, S, given = query.shape[-2], key.shape[-2], inputs.options
    i, j = np.arange(T)[:, None], np.arange(S)
    allowed = np.ones((T, S), bool)
    begins = np.asarray(given.get("offset", 0))
    i = i + (begins[..., None, None, None] if begins.ndim else begins)  # of the queries, among the keys (L4)
    if given.get("is_causal"):
        allowed = allowed & (j <= i)
    if given.get("window") is not None:
        left, right = given["window"]
        allowed = allowed & ((left is None) | (j >= i - (left or 0))) & ((right is None) | (j <= i + (right or 0)))
    if given.get("key_lengths") is not None:
        allowed = allowed & (j < np.asarray(given["key_lengths"])[..., None, None, None])
    if given.get("query_segment_ids") is not None:
        ids = given["query_segment_ids"], given["key_segment_ids"]
        allowed = allowed & (np.asarray(ids[0])[..., None, :, None] == np.asarray(ids[1])[..., None, None, :])
    if given.get("mask") is not None:
        allowed = allowed & given["mask"]
    return allowed
