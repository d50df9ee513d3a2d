"""Functions that are off by one mistake, and what the kit should say of those that no other test has."""

import numpy as np

import right_attention
from attendax.conformance.diagnoses.by_running import RACE

TILED = "key heads are tiled (n % G) instead of blocked (n // (N // G))"


def tiled(query, key, value, **options):
    if query.ndim > 2 and (group := query.shape[-3] // key.shape[-3]) > 1:
        key, value = (np.concatenate([x] * group, axis=-3) for x in (key, value))
    return right_attention.attend(query, key, value, **options)


def tiled_backward(grad_output, query, key, value, **options):
    group, heads = query.shape[-3] // key.shape[-3], key.shape[-3]
    wide = [np.concatenate([x] * group, axis=-3) for x in (key, value)]
    grad_query, *narrow = right_attention.backward(grad_output, query, *wide, **options)
    narrow = [sum(x[..., k * heads : (k + 1) * heads, :, :] for k in range(group)) for x in narrow[:2]]
    return grad_query, *narrow


def unscaled(query, key, value, *, scale=None, **options):
    return right_attention.attend(query, key, value, scale=1.0 if scale is None else scale, **options)


def unscaled_backward(grad_output, query, key, value, *, scale=None, **options):
    return right_attention.backward(grad_output, query, key, value, scale=1.0 if scale is None else scale, **options)


def wrong(**changes):
    """The right function with other options: each change is a function of the options and the arrays."""

    def attend(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
               key_lengths=None, return_lse=False, offset=0):  # fmt: skip
        given = dict(mask=mask, bias=bias, is_causal=is_causal, scale=scale, softcap=softcap, window=window,
                     key_lengths=key_lengths, return_lse=return_lse, offset=offset)  # fmt: skip
        arrays = dict(query=query, key=key, value=value)
        for name, change in changes.items():
            (arrays if name in arrays else given)[name] = change(given, arrays)
        return right_attention.attend(**arrays, **given)

    return attend


def at_the_end(given, arrays):
    T, S = arrays["query"].shape[-2], arrays["key"].shape[-2]
    return np.tri(T, S, S - T, dtype=bool) if given["is_causal"] else given["mask"]


def of_size(power, axis=-1):
    def change(given, arrays):
        return arrays["query"].shape[axis] ** power if given["scale"] is None else given["scale"]

    return change


def not_transposed(query, key, value):
    out = right_attention.attend(query, key, value)
    return out.swapaxes(-2, -3).reshape(out.shape)


def planted(masked=-np.inf, cap_last=False, divided=True):
    """The plain formula, with a place for each of some mistakes."""

    def attend(query, key, value, *, mask=None, scale=None, softcap=None, bias=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = (query @ key.swapaxes(-1, -2) * np.float32(scale)).astype(np.float32)
        if softcap is not None and not cap_last:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias
        if softcap is not None and cap_last:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None:
            scores = np.where(mask, scores, masked)
        with np.errstate(all="ignore"):
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights = powers / powers.sum(axis=-1, keepdims=True) if divided else powers
            return (weights @ value).astype(query.dtype)

    return attend


def twice_as_large(query, key, value):
    return 2 * right_attention.attend(query, key, value)


def second_block(query, key, value):
    out = right_attention.attend(query, key, value)
    out[..., 64:, :] = out[..., 64:, :] * 0.5 + 0.1
    return out


def turned_rows(query, key, value):
    out = right_attention.attend(query, key, value)
    out[..., 64::64, :] *= -1
    return out


def rounded_up(block):
    """Key lengths, up to a multiple of a block."""

    def change(given, arrays):
        S, lengths = arrays["key"].shape[-2], given["key_lengths"]
        return None if lengths is None else np.minimum(-(-lengths // block) * block, S)

    return wrong(key_lengths=change)


def kept(query, key, value, calls=[0]):  # noqa: B006
    calls[0] += 1
    return right_attention.attend(query, key, value) + np.float32(calls[0])


def of_the_sum(query, key, value, *, mask=None, return_lse=False):
    """The logarithm of the sum alone, as it is beside the largest score."""
    out, lse = right_attention.attend(query, key, value, mask=mask, return_lse=True)
    scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
    largest = (scores if mask is None else np.where(mask, scores, -np.inf)).max(axis=-1)
    return (out, lse - largest) if return_lse else out


def forgets_causal(query, key, value, *, is_causal=False):
    return right_attention.attend(query, key, value)


def late_bias(query, key, value, *, bias=None):
    return right_attention.attend(query, key, value) + (0 if bias is None else bias @ value)


def turned(given, arrays):
    T, S = arrays["query"].shape[-2], arrays["key"].shape[-2]
    return ~np.tri(T, S, -1, dtype=bool) if given["is_causal"] else given["mask"]


def narrow(query, key, value):
    arrays = (x.astype(np.float32) for x in (query, key, value))
    return right_attention.attend(*arrays).astype(query.dtype)


def half_operands(x):
    whole = np.asarray(x, np.float32).view(np.uint32)
    return ((whole + 0xFFF + ((whole >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32).reshape(x.shape)


def tf32(query, key, value):
    """As a tensor core multiplies: operands of ten bits."""
    wide = [half_operands(np.asarray(x, np.float32)) for x in (query, key, value)]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return half_operands(powers / powers.sum(axis=-1, keepdims=True)) @ wide[2]


PLANTED = {  # the function, some cases, the diagnosis, the remedy
    "scale up": (wrong(scale=of_size(0.5)), ["plain"], "scores are multiplied by √D", ""),
    "cap": (planted(cap_last=True), ["softcap, then bias"], "softcap caps after the bias is added", ""),
    "sum": (planted(divided=False), ["plain"], "the softmax is not divided by its sum", ""),
    "mask of -1e4": (planted(masked=np.float32(-1e4)), ["scores of -2e31, masked", "mask (T, S)"],
                     "masked scores are a finite number: they keep a weight where others are lower",
                     "-inf where masked, before the softmax"),
    "rows turned": (turned_rows, ["lengths that no block"], "some results have the wrong sign: query 64", ""),
    "lengths up to 8": (rounded_up(8), ["key lengths"], "key lengths are rounded up to multiples of 8", ""),
    "lengths up to 128": (rounded_up(128), ["key lengths"], "key lengths are rounded up to multiples of 128", ""),
    "factor": (twice_as_large, ["plain"], "out: 2 times what is right", ""),
    "block": (second_block, ["lengths that no block"],
              "right below row 64 (a multiple of 64), wrong from there to 130: "
              "blocks are joined or indexed wrongly", ""),
    "kept": (kept, ["plain"], RACE, ""),
    "ignored": (forgets_causal, ["causal, more", "causal, fewer"], "is_causal is ignored",
                'lacks = ["is_causal"] in a contract file'),
    "float32": (narrow, ["float64"], "float64 is computed in float32", ""),
    "late bias": (late_bias, ["bias (B", "bias (T"], "the bias is added after the softmax", ""),
    "sum of lse": (of_the_sum, ["lse"], "lse is of the sum alone: the row's largest score is not added", ""),
    "causal turned": (wrong(mask=turned, is_causal=lambda g, a: False), ["causal", "causal, one query"],
                      "causal is reversed: a query sees its own key and those after it (j >= i)", ""),
    "scale of queries": (wrong(scale=of_size(-0.5, axis=-2)), ["plain", "one query"],
                         "the scale is 1/√T", ""),
    "offset twice": (wrong(offset=lambda given, arrays: 2 * given["offset"]), ["cache: a block"],
                     "the offset of a cache is added twice", ""),
    "heads reshaped": (not_transposed, ["plain", "one query"],
                       "heads of the result are reshaped to (.., N, T, V) instead of swapping axes", ""),
    "tf32": (tf32, ["width 13"], "float32 is as coarse as products at tf32 or in float16", "--precision tf32"),
}  # fmt: skip
