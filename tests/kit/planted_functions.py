"""Functions with one mistake each, and what the kit should say of each."""

import numpy as np

import right_attention
from attendax.conformance.diagnoses.by_running import RACE


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


def tiled(name):
    def change(given, arrays):
        N, G = arrays["query"].shape[-3], arrays[name].shape[-3]
        return np.concatenate([arrays[name]] * (N // G), axis=-3)

    return change


def of_width(power):
    def change(given, arrays):
        return arrays["query"].shape[-1] ** power if given["scale"] is None else given["scale"]

    return change


def of_axis(name, axis):
    return lambda given, arrays: arrays[name].shape[axis] ** -0.5 if given["scale"] is None else given["scale"]


def not_transposed(query, key, value):
    out = right_attention.attend(query, key, value)
    return out.swapaxes(-2, -3).reshape(out.shape)


def only(name, change):
    return {name: lambda given, arrays: None if given[name] is None else change(given[name])}


def formula(query, key, value, *, mask=None, scale=None, softcap=None, bias=None, axis=-1, masked=-np.inf, shifted=True,
            after=False, cap_last=False, divided=True):  # fmt: skip
    """The plain formula, with a place for each of some mistakes."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.swapaxes(-1, -2) * np.float32(scale)).astype(np.float32)
    if softcap is not None and not cap_last:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if softcap is not None and cap_last:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and not after:
        scores = np.where(mask, scores, masked)
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(axis=axis, keepdims=True) if shifted else scores)
        weights = powers / powers.sum(axis=axis, keepdims=True) if divided else powers
        weights = np.where(mask, weights, 0) if mask is not None and after else weights
        return (weights @ value).astype(query.dtype)


def planted(**settings):
    def attend(query, key, value, *, mask=None, scale=None, softcap=None, bias=None):
        return formula(query, key, value, mask=mask, scale=scale, softcap=softcap, bias=bias, **settings)

    return attend


def padded_with_zeros(query, key, value):
    more = -key.shape[-2] % 16
    key, value = (np.pad(x, [(0, 0), (0, 0), (0, more), (0, 0)]) for x in (key, value))
    return right_attention.attend(query, key, value)


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


def base_2(query, key, value, *, return_lse=False):
    out, lse = right_attention.attend(query, key, value, return_lse=True)
    return (out, lse / np.float32(np.log(2))) if return_lse else out


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


def of_queries(given, arrays):
    rows, ends = np.arange(arrays["query"].shape[-2])[:, None], given["key_lengths"]
    return given["mask"] if ends is None else rows < ends[:, None, None, None]


def whole_blocks(name, block=8):
    def change(given, arrays):
        S = arrays[name].shape[-2]
        return arrays[name][..., : S // block * block if block < S else S, :]

    return change


def joined(late):
    """An online softmax over blocks of 8 keys; some sums stay as they were when the maximum rises."""

    def attend(query, key, value):
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        largest, total, out = np.full((*scores.shape[:-1], 1), -1e30, np.float32), 0, 0
        for start in range(0, key.shape[-2], 8):
            part = slice(start, start + 8)
            higher = np.maximum(largest, scores[..., part].max(axis=-1, keepdims=True))
            powers, less = np.exp(scores[..., part] - higher), np.exp(largest - higher)
            total = total * (1 if "sum" in late else less) + powers.sum(axis=-1, keepdims=True)
            out = out * (1 if "output" in late else less) + powers @ value[..., part, :]
            largest = higher
        return out / total

    return attend


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


GQA = "key heads are tiled (n % G) instead of blocked (n // (N // G))"
PLANTED = {  # the function, some cases, the diagnosis, the remedy
    "causal end": (wrong(mask=at_the_end, is_causal=lambda g, a: False), ["causal, "],
                   "causal is aligned to the end of the keys", '--expect "causal=aligned to the end"'),
    "mask": (wrong(**only("mask", np.logical_not)), ["mask (T, S)", "mask (B, N, T, S)"],
             "True in a mask means drop", '--expect "mask=True drops"'),
    "tiled": (wrong(key=tiled("key"), value=tiled("value")), ["grouped heads", "one key head"], GQA, ""),
    "no scale": (wrong(scale=of_width(0.0)), ["plain"], "scores are not scaled", ""),
    "scale twice": (wrong(scale=of_width(-1.0)), ["plain"], "the scale is 1/D", ""),
    "scale up": (wrong(scale=of_width(0.5)), ["plain"], "scores are multiplied by √D", ""),
    "bias down": (wrong(**only("bias", np.negative)), ["bias (B", "bias (T"], "the bias is subtracted", ""),
    "lengths": (wrong(**only("key_lengths", lambda x: x - 1)), ["key lengths"],
                "key lengths are off by one, too short", ""),
    "window": (wrong(**only("window", lambda x: (None if x[0] is None else x[0] - 1, x[1]))), ["window to the left"],
               "a window counts one key less to the left", ""),
    "base 2": (base_2, ["lse"], "lse is in base 2", '--expect "lse=base 2"'),
    "cap": (planted(cap_last=True), ["softcap, then bias"], "softcap caps after the bias is added", ""),
    "axis": (planted(axis=-2), ["plain", "values"], "softmax runs over the queries", ""),
    "sum": (planted(divided=False), ["plain"], "the softmax is not divided by its sum", ""),
    "mask after": (planted(after=True), ["mask (T, S)", "mask (B"], "the mask is applied after the softmax", ""),
    "mask of 0": (planted(masked=0.0), ["mask (T, S)", "mask (B"], "masked scores are 0 instead of minus infinity",
                  "-inf where masked, before the softmax"),
    "mask of -1e4": (planted(masked=np.float32(-1e4)), ["scores of -2e31, masked", "mask (T, S)"],
                     "masked scores are a finite number: they keep a weight where others are lower",
                     "-inf where masked, before the softmax"),
    "rows turned": (turned_rows, ["lengths that no block"], "some results have the wrong sign: query 64", ""),
    "lengths up to 8": (rounded_up(8), ["key lengths"], "key lengths are rounded up to multiples of 8", ""),
    "lengths up to 128": (rounded_up(128), ["key lengths"], "key lengths are rounded up to multiples of 128", ""),
    "overflow": (planted(shifted=False), ["scores of 1e30", "scores all very"],
                 "exp overflows: the row's largest score is not subtracted", "exp(s - max(s))"),
    "mean": (planted(masked=np.float32(-1e30)), ["empty row by a mask", "all rows"],
             "a query without any key gets the mean of the values", '--expect "empty=the mean of the values"'),
    "nan": (planted(), ["empty row by a mask", "all rows"], "a query without any key gets NaN", '--expect "empty=NaN"'),
    "padding": (padded_with_zeros, ["plain", "one query"], "keys of zeros that fill the last block of 8 are counted",
                "mask what lies beyond S"),
    "factor": (twice_as_large, ["plain"], "out: 2 times what is right", ""),
    "block": (second_block, ["lengths that no block"],
              "right below row 64 (a multiple of 64), wrong from there to 130: "
              "blocks are joined or indexed wrongly", ""),
    "kept": (kept, ["plain"], RACE, ""),
    "ignored": (forgets_causal, ["causal, more", "causal, fewer"], "is_causal is ignored",
                'lacks = ["is_causal"] in a contract file'),
    "float32": (narrow, ["float64"], "float64 is computed in float32", ""),
    "late bias": (late_bias, ["bias (B", "bias (T"], "the bias is added after the softmax", ""),
    "sum of lse": (of_the_sum, ["lse", "merge"], "lse is of the sum alone: the row's largest score is not added", ""),
    "causal turned": (wrong(mask=turned, is_causal=lambda g, a: False), ["causal", "causal, one query"],
                      "causal is reversed: a query sees its own key and those after it (j >= i)", ""),
    "lengths of queries": (wrong(mask=of_queries, key_lengths=lambda g, a: None), ["key lengths"],
                           "key lengths hide queries, not keys", ""),
    "last block": (wrong(key=whole_blocks("key"), value=whole_blocks("value")), ["plain", "lengths that no block"],
                   "keys behind the last whole block are left out", ""),
    **{f"old {what}": (joined(what), ["lengths that no block"],
                       f"blocks of keys are joined, but the {what} is not multiplied by "
                       "exp(old maximum - new maximum)", "")
       for what in ("output", "sum", "output and sum")},
    "scale of heads": (wrong(scale=of_axis("query", -3)), ["plain", "one head"],
                       "the scale is 1/√N", ""),
    "scale of queries": (wrong(scale=of_axis("query", -2)), ["plain", "one query"],
                         "the scale is 1/√T", ""),
    "scale of keys": (wrong(scale=of_axis("key", -2)), ["plain", "one key"],
                      "the scale is 1/√S", ""),
    "offset twice": (wrong(**only("offset", lambda x: 2 * x)), ["cache: a block"],
                     "the offset of a cache is added twice", ""),
    "one offset": (wrong(**only("offset", lambda x: np.full_like(x, x[0]))), ["cache: filled in part"],
                   "every batch gets the offset of the first", ""),
    "heads reshaped": (not_transposed, ["plain", "one query"],
                       "heads of the result are reshaped to (.., N, T, V) instead of swapping axes", ""),
    "tf32": (tf32, ["width 13"], "float32 is as coarse as products at tf32 or in float16", "--precision tf32"),
}  # fmt: skip
