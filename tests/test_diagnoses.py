"""The doctor: planted functions, each of one mistake, and the words that it says of them; and who has nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import right_attention
from attendax import conformance
from attendax.conformance.diagnoses.by_numbers import ROUNDED
from attendax.conformance.diagnoses.by_running import RACE
from attendax.conformance.diagnoses.causes import folded
from attendax.conformance.report.outcomes import Cause, Harm

# At small sizes every cause shows; another process would import this module, and JAX with it, for each function.
check = functools.partial(conformance.check, seed=0, budget=0, in_process=True)


@pytest.fixture(autouse=True)
def as_users_have_it():
    """32 bits, and ranks promoted: what the judged functions are written for."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


def right(query, key, value, **options):
    return right_attention.attend(query, key, value, **options)


def wrong(**changes):
    """The right function with other options: each change is a function of the options and the arrays."""

    def attend(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
               key_lengths=None, return_lse=False, offset=None):  # fmt: skip
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


def formula(query, key, value, *, mask=None, softcap=None, bias=None, axis=-1, masked=-np.inf, shifted=True,
            after=False, cap_last=False, divided=True):  # fmt: skip
    """The plain formula, with a place for each of some mistakes."""
    scores = (query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)).astype(np.float32)
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
    def attend(query, key, value, *, mask=None, softcap=None, bias=None):
        return formula(query, key, value, mask=mask, softcap=softcap, bias=bias, **settings)

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


def one_head_for_each(query, key, value):
    return np.einsum("bntd,bnsd->bnts", query, key)[..., :1] * 0 + right_attention.attend(query, key, value)


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
                   "causal is aligned to the end of the keys", "--causal end"),
    "mask": (wrong(**only("mask", np.logical_not)), ["mask (T, S)", "mask (B, N, T, S)"],
             "True in a mask means drop", "--mask-true drop"),
    "tiled": (wrong(key=tiled("key"), value=tiled("value")), ["grouped heads", "one key head"], GQA, ""),
    "no scale": (wrong(scale=of_width(0.0)), ["plain"], "scores are not scaled", ""),
    "scale twice": (wrong(scale=of_width(-1.0)), ["plain"], "the scale is applied twice", ""),
    "scale up": (wrong(scale=of_width(0.5)), ["plain"], "scores are multiplied by √D", ""),
    "bias down": (wrong(**only("bias", np.negative)), ["bias (B", "bias (T"], "the bias is subtracted", ""),
    "lengths": (wrong(**only("key_lengths", lambda x: x - 1)), ["key lengths"],
                "key lengths are off by one, too short", ""),
    "window": (wrong(**only("window", lambda x: (None if x[0] is None else x[0] - 1, x[1]))), ["window to the left"],
               "a window counts one key less to the left", ""),
    "base 2": (base_2, ["lse"], "lse is in base 2", "--lse-base 2"),
    "cap": (planted(cap_last=True), ["softcap, then bias"], "softcap caps after the bias is added", ""),
    "axis": (planted(axis=-2), ["plain", "values"], "softmax runs over the queries", ""),
    "sum": (planted(divided=False), ["plain"], "the softmax is not divided by its sum", ""),
    "mask after": (planted(after=True), ["mask (T, S)", "mask (B"], "the mask is applied after the softmax", ""),
    "mask of 0": (planted(masked=0.0), ["mask (T, S)", "mask (B"], "masked scores are 0 instead of minus infinity",
                  "-inf where masked, before the softmax"),
    "overflow": (planted(shifted=False), ["scores of 1e30", "scores all very"],
                 "exp overflows: the row's largest score is not subtracted", "exp(s - max(s))"),
    "mean": (planted(masked=np.float32(-1e30)), ["empty row by a mask", "all rows"],
             "a query without any key gets the mean of the values", "--empty-rows mean"),
    "nan": (planted(), ["empty row by a mask", "all rows"], "a query without any key gets NaN", "--empty-rows nan"),
    "padding": (padded_with_zeros, ["plain", "one query"], "keys of zeros that fill the last block of 8 are counted",
                "mask what lies beyond S"),
    "factor": (twice_as_large, ["plain"], "out: 2 times what is right", ""),
    "block": (second_block, ["lengths that no block"],
              "right below row 64 (a multiple of 64), wrong from there to 130: "
              "blocks are joined or indexed wrongly", ""),
    "kept": (kept, ["plain"], RACE, ""),
    "ignored": (forgets_causal, ["causal, more", "causal, fewer"], "is_causal is ignored", '--lacks "is_causal"'),
    "float32": (narrow, ["float64"], "float64 is computed in float32", ""),
    "late bias": (late_bias, ["bias (B", "bias (T"], "the bias is added after the softmax", ""),
    "sum of lse": (of_the_sum, ["lse", "merge"], "lse is of the sum alone: the row's largest score is not added", ""),
    "causal turned": (wrong(mask=turned, is_causal=lambda g, a: False), ["causal", "causal, one query"],
                      "causal is turned round: a query sees its own key and those after it (j >= i)", ""),
    "lengths of queries": (wrong(mask=of_queries, key_lengths=lambda g, a: None), ["key lengths"],
                           "key lengths hide queries, and no keys", ""),
    "last block": (wrong(key=whole_blocks("key"), value=whole_blocks("value")), ["plain", "lengths that no block"],
                   "keys behind the last whole block are left out", ""),
    **{f"old {what}": (joined(what), ["lengths that no block"],
                       f"blocks of keys are joined, but the {what} is not multiplied by "
                       "exp(old maximum - new maximum)", "")
       for what in ("output", "sum", "output and sum")},
    "scale of heads": (wrong(scale=of_axis("query", -3)), ["plain", "one head"],
                       "the scale is 1/√N, of the number of heads", ""),
    "scale of queries": (wrong(scale=of_axis("query", -2)), ["plain", "one query"],
                         "the scale is 1/√T, of the number of queries", ""),
    "scale of keys": (wrong(scale=of_axis("key", -2)), ["plain", "one key"],
                      "the scale is 1/√S, of the number of keys", ""),
    "offset twice": (wrong(**only("offset", lambda x: 2 * x)), ["cache: a block"],
                     "the offset of a cache is added twice", ""),
    "one offset": (wrong(**only("offset", lambda x: np.full_like(x, x[0]))), ["cache: filled in part"],
                   "every batch gets the offset of the first", ""),
    "heads reshaped": (not_transposed, ["plain", "one query"],
                       "the result is (.., T, N, V) reshaped to (.., N, T, V), where axes have to be swapped", ""),
    "tf32": (tf32, ["width 13"], "float32 products run at tf32 or in float16", "--precision tf32"),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_named(mistake):
    fn, cases, words, remedy = PLANTED[mistake]
    report = check(fn, arrays="numpy", only=cases, level="forward", profile="law")
    told = {cause.name: cause for cause in report.causes}
    words = words.replace("block of 8", "block of 16") if mistake == "padding" else words
    assert words in told, list(told)
    assert told[words].remedy == remedy
    assert told[words].tried >= 1 or "is right" in words or words.startswith("right below")


def test_every_fault_is_in_one_cause_and_the_worst_is_first():
    fn = wrong(scale=of_width(-1.0))
    report = check(fn, arrays="numpy", only=["plain", "no keys"], profile="robust")
    named = [name for cause in report.causes for name in cause.cases]
    assert sorted(named) == sorted(outcome.case.name for outcome in report.failures)
    assert [cause.harm for cause in report.causes] == sorted((c.harm for c in report.causes), key=list(Harm).index)


def test_a_call_that_raises_names_what_is_not_offered():
    def attend(query, key, value):
        return np.einsum("bntd,bnsd,bnse->bnte", query, key, value) * 0 + right_attention.attend(query, key, value)

    report = check(attend, arrays="numpy", only=["grouped heads"], level="forward", profile="law")
    assert {cause.remedy for cause in report.causes} == {'--lacks "grouped heads"'}
    assert check(attend, arrays="numpy", only=["grouped heads"], level="forward").counts().keys() == {"not offered"}


# Right functions as people write them have no fault where only numbers are asked.


def by_einsum(query, key, value, *, mask=None, is_causal=False):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -1e9)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), value)


def by_scan(query, key, value, *, is_causal=False):
    """Online softmax, one key at a time."""
    T, scale = query.shape[-2], query.shape[-1] ** -0.5

    def step(carry, inputs):
        top, total, out = carry
        j, k, v = inputs
        score = jnp.einsum("bhqd,bhd->bhq", query.astype("float32"), k.astype("float32")) * scale
        score = jnp.where(is_causal & (j > jnp.arange(T)), -1e30, score)
        new = jnp.maximum(top, score)
        kept, weight = jnp.exp(top - new), jnp.exp(score - new)
        out = out * kept[..., None] + weight[..., None] * v[:, :, None].astype("float32")
        return (new, total * kept + weight, out), None

    shape = query.shape[:-1]
    start = (jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, value.shape[-1])))
    keys = (jnp.arange(key.shape[-2]), jnp.moveaxis(key, 2, 0), jnp.moveaxis(value, 2, 0))
    _, total, out = jax.lax.scan(step, start, keys)[0]
    return (out / total[..., None]).astype(query.dtype)


def by_loops(query, key, value, *, scale=None):
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for place in np.ndindex(query.shape[:-1]):
        scores = key[place[:-1]] @ query[place] * (scale if scale is not None else 1 / np.sqrt(query.shape[-1]))
        weights = np.exp(scores - scores.max())
        out[place] = weights @ value[place[:-1]] / weights.sum()
    return out


@jax.custom_vjp
def by_hand(query, key, value):
    return by_einsum(query, key, value)


def _forward(query, key, value):
    return by_einsum(query, key, value), (query, key, value)


def _backward(saved, grad):
    query, key, value = (x.astype("float32") for x in saved)
    scale = query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", query, key) * scale)
    grad = grad.astype("float32")
    dweights = jnp.einsum("bhqd,bhkd->bhqk", grad, value)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) * scale
    grads = dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ grad
    return tuple(x.astype(old.dtype) for x, old in zip(grads, saved, strict=True))


by_hand.defvjp(_forward, _backward)


def custom(query, key, value):
    return by_hand(query, key, value)


def by_torch(query, key, value, *, mask=None, is_causal=False):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)


EVERYDAY = {"einsum": by_einsum, "scan": by_scan, "custom_vjp": custom}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYDAY)
def test_a_right_function_of_jax_has_no_fault(name):
    report = check(EVERYDAY[name], arrays="jax", budget=0)
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 30


def test_right_loops_have_no_fault():
    report = check(by_loops, arrays="numpy", only=["plain", "one ", "width", "scale", "bfloat16", "float16", "views"])
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 10


@pytest.mark.slow
def test_a_wrapper_of_torch_has_no_fault():
    pytest.importorskip("torch", reason="torch is not installed")
    report = check(by_torch, arrays="torch", budget=0)
    assert [o.case.name for o in report.failures] == []
    assert report.counts()["ok"] >= 60


def kernel_of_torch(*, once):
    """A forward and a backward by hand, the context given to ``forward`` or made by ``setup_context``."""
    import torch

    def powers(query, key):
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)

    class Kernel(torch.autograd.Function):
        if once:

            @staticmethod
            def forward(query, key, value):
                return powers(query, key) @ value

            @staticmethod
            def setup_context(context, inputs, output):
                context.save_for_backward(*inputs)

        else:

            @staticmethod
            def forward(context, query, key, value):
                context.save_for_backward(query, key, value)
                return powers(query, key) @ value

        @staticmethod
        def backward(context, grad):
            query, key, value = context.saved_tensors
            weights, dweights = powers(query, key), grad @ value.mT
            scores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
            return scores @ key, scores.mT @ query, weights.mT @ grad

    return lambda query, key, value: Kernel.apply(query, key, value)


@pytest.mark.parametrize("once", [False, True])
def test_a_kernel_of_torch_without_torch_func_has_no_fault(once):
    pytest.importorskip("torch", reason="torch is not installed")
    report = check(kernel_of_torch(once=once), arrays="torch", only=["plain", "vmap"])
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 2


# For kernel authors


def block_kernel(query, key, value, *, is_causal=False):
    """TF32 products, and no width below 16."""
    if query.shape[-1] < 16:
        raise ValueError(f"D must be at least 16, got {query.shape[-1]}")
    out = tf32(query, key, value) if not is_causal else None
    if is_causal:
        raise NotImplementedError("no causal mask")
    return out.astype(query.dtype)


def test_a_kernel_that_needs_wide_heads_is_judged_at_its_sizes():
    given = {"arrays": "numpy", "level": "forward", "sizes": dict(B=2, N=4, T=48, S=48, D=64)}
    coarse = check(block_kernel, **given)
    assert [cause.remedy for cause in coarse.causes] == ["--precision tf32"]
    judged = check(block_kernel, precision="tf32", **given)
    assert judged.ok
    assert judged.counts()["ok"] >= 3
    assert all(o.case.sizes["D"] == 64 for o in judged.cases)
    half = check(block_kernel, dtype="bfloat16", **given)
    assert half.ok


def with_less(bits, ahead=0):
    """Products of operands without the last bits; a causal mask of so many keys ahead."""

    def coarse(x):
        half = np.uint32(1 << (bits - 1))
        return ((np.asarray(x, np.float32).view(np.uint32) + half) & ~(2 * half - 1)).view(np.float32).reshape(x.shape)

    def attend(query, key, value, *, is_causal=False):
        scores = coarse(query) @ coarse(key).swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], k=ahead, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return coarse(powers / powers.sum(axis=-1, keepdims=True)) @ coarse(value)

    return attend


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 13), ("bf16", 16)])
def test_a_reason_is_found_at_a_coarser_precision(precision, bits):
    given = {"arrays": "numpy", "only": ["plain", "causal"], "precision": precision, "level": "forward"}
    report = check(with_less(bits, ahead=1), **given)
    assert [cause.name for cause in report.causes] == ["causal lets a query see one key ahead (j <= i + 1)"]


def test_rounding_is_given_no_other_reason():
    given = {"arrays": "numpy", "only": ["plain", "one ", "causal", "width"], "level": "forward"}
    report = check(with_less(16), precision="tf32", **given)  # it is bf16
    assert report.failures
    assert [cause.name for cause in report.causes if cause.tried] == []


def test_sizes_are_found_by_trying_and_those_of_the_user_are_asked():
    assert check(block_kernel, precision="tf32", only=["plain"], level="forward").coverage.judged["results"]
    assert check(block_kernel, sizes=dict(D=64), precision="tf32", only=["plain"], level="forward").ok


def test_what_is_not_deterministic_can_be_said():
    def attend(query, key, value, *, is_causal=False, rng=np.random.default_rng(3)):  # noqa: B008
        out = right_attention.attend(query, key, value, is_causal=is_causal)
        return out * (1 + np.float32(1e-7) * rng.integers(-1, 2, out.shape).astype(np.float32))

    given = {"arrays": "numpy", "only": ["repeated", "NaN in a future value"], "level": "forward", "profile": "robust"}
    report = check(attend, **given)
    assert "leak" in report.counts()
    assert [(cause.name, cause.remedy) for cause in report.causes] == [
        ("the same call gives other bits the next time", '--lacks "determinism"')
    ]
    assert check(attend, lacks=["determinism"], **given).counts() == {"ok": 1, "not offered": 1}


def test_a_device_is_where_arrays_are_made():
    report = check(functools.partial(by_einsum), arrays="jax", only=["one key"], level="forward", device="cpu:0")
    assert report.ok
    assert "jax_default_device" not in "".join(o.reproduction for o in report.cases)


def test_a_row_here_and_there_is_no_block():
    def attend(query, key, value):
        out = right_attention.attend(query, key, value)
        out[..., 64::50, :] += 0.5
        return out

    report = check(attend, arrays="numpy", only=["lengths that no block"], level="forward")
    assert [cause.name for cause in report.causes] == ["wrong only where T > 64"]


def test_an_lse_that_is_wrong_is_one_cause():
    def attend(query, key, value, *, return_lse=False):
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        powers = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
        total = powers.sum(axis=-1)
        out = powers @ value / total[..., None]
        return (out, jnp.log(total)) if return_lse else out

    report = check(attend, arrays="jax", only=["lse", "merge"])
    (cause,) = report.causes
    assert cause.name == "lse is of the sum alone: the row's largest score is not added"
    assert cause.harm is Harm.NUMBERS
    assert {"merge", "gradient: lse", "jvp: lse"} <= set(cause.cases)


def test_parts_that_are_joined_are_not_compared_with_one_call():
    report = check(of_the_sum, arrays="numpy", only=["merge"], level="forward")
    assert [cause.name for cause in report.causes] == ["the result is wrong with return_lse"]  # and no other reason


def test_arrays_of_numpy_are_on_no_other_device():
    with pytest.raises(ValueError, match=r"plainest call(.|\n)*numpy  has no device cuda:0(.|\n)*dtype, sizes and"):
        check(by_loops, device="cuda:0", only=["plain"], level="forward")
    assert check(by_loops, device="cpu", only=["plain"], level="forward").ok


def test_a_reason_that_a_plainer_case_refutes_is_a_coincidence():
    """A scale of the queries' number is none where there is one query, and other reasons hold in other single cases."""

    def attend(query, key, value):
        return right_attention.attend(query, key, value, scale=query.shape[-2] ** -0.25)

    report = check(attend, arrays="numpy", only=["plain", "one query"], level="forward")
    assert {"plain", "one query"} <= {outcome.case.name for outcome in report.failures}
    assert [cause.name for cause in report.causes] == ["the result is wrong"]  # not that scores are not scaled


def test_an_option_that_is_ignored_has_no_other_reason():
    """Where the first length is the whole one, every batch seems to get it."""

    def attend(query, key, value, *, key_lengths=None):
        return right_attention.attend(query, key, value)

    report = check(attend, arrays="numpy", only=["key lengths"], level="forward")
    assert [cause.name for cause in report.causes] == ["key_lengths is ignored"]


def test_two_mistakes_are_two_causes():
    fn = wrong(scale=of_width(-1.0), mask=at_the_end, is_causal=lambda given, arrays: False)
    report = check(fn, arrays="numpy", only=["causal, fewer", "causal, more", "plain", "one query"], level="forward")
    assert {cause.name for cause in report.causes} == {
        "the scale is applied twice",
        "causal is aligned to the end of the keys",
    }


def packed(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=False, ends=True):
    """(tokens, N, D), in torch and JAX; without ``ends`` every sequence is thought to have the largest length."""
    xp = jnp if isinstance(query, jax.Array) else __import__("torch")

    def placed(cumulated, tokens, length):  # which sequence a token is of, and its place there
        begins = cumulated if ends else xp.arange(0, tokens + length, length)
        behind = xp.arange(tokens)[:, None] >= begins
        begin = xp.where(behind, begins, 0)
        return behind.sum(1), xp.arange(tokens) - (begin.max(1) if xp is jnp else begin.amax(1))

    (seq_q, i), (seq_k, j) = (
        placed(cu_seqlens_q, len(query), max_seqlen_q),
        placed(cu_seqlens_k, len(key), max_seqlen_k),
    )
    allowed = (seq_q[:, None] == seq_k) & ((j <= i[:, None]) | (not is_causal))
    scores = xp.einsum("tnd,snd->nts", query, key) * query.shape[-1] ** -0.5
    powers = xp.where(allowed, xp.exp(scores), 0)
    return xp.einsum("nts,snv->tnv", powers / powers.sum(-1)[..., None], value)


@pytest.mark.parametrize("arrays", ["jax", "torch"])
def test_packed_sequences(arrays):
    """They are of different lengths, so that a function that counts on one length is wrong."""
    pytest.importorskip(arrays)
    given = {"arrays": arrays, "layout": "packed", "only": ["causal, fewer queries"]}
    assert check(packed, **given).counts() == {"ok": 2}  # and its gradient
    assert not check(functools.partial(packed, ends=False), **given, level="forward").ok


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (lambda i, j, k, m: (k - 1 if k else k, m), "a packed sequence sees the last key of the one before it"),
        (lambda i, j, k, m: (k, m + 1), "a packed sequence sees the first key of the one behind it"),
        (lambda i, j, k, m: (i, j), "keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k"),
    ],
    ids=["before", "behind", "of queries"],
)
def test_a_mistake_in_packed_sequences_is_named(keys, words):
    def attend(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        rows = (cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:])
        parts = []
        for i, j, k, m in zip(*rows, strict=True):
            seen = slice(*keys(i, j, k, m))
            arrays = (x.swapaxes(0, 1) for x in (query[i:j], key[seen], value[seen]))
            parts.append(right_attention.attend(*arrays).swapaxes(0, 1))
        return np.concatenate(parts)

    report = check(attend, arrays="numpy", layout="packed", only=["plain", "width"], level="forward")
    assert [cause.name for cause in report.causes] == [words]


@pytest.mark.parametrize("arrays", ["jax", "torch"])
def test_gradients_by_hand(arrays):
    """They are judged in place of those that the framework would find."""
    pytest.importorskip(arrays)

    def attend(query, key, value, *, bias=0):
        weights = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 + bias
        return shares(weights) @ value

    def shares(scores):
        return jax.nn.softmax(scores) if arrays == "jax" else scores.softmax(-1)

    def backward(grad_output, query, key, value, *, bias=0, times=1):
        weights = shares(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 + bias)
        dweights = grad_output @ value.swapaxes(-1, -2)
        dscores = weights * (dweights - (dweights * weights).sum(-1)[..., None])
        grads = [dscores @ key, dscores.swapaxes(-1, -2) @ query]
        grads = [times * x * query.shape[-1] ** -0.5 for x in grads] + [weights.swapaxes(-1, -2) @ grad_output]
        return [*grads, dscores.sum(0)[None]] if hasattr(bias, "shape") else grads

    given = {"arrays": arrays, "only": ["gradient: plain", "gradient: bias (1, N"], "level": "backward"}
    report = check(attend, backward=backward, **given)
    assert set(report.counts()) == {"ok"}, report.failures
    wrong = check(attend, backward=functools.partial(backward, times=2), **given)
    assert set(wrong.counts()) == {"wrong"}


def test_what_rounds_more_than_the_law_allows_is_one_cause_and_no_wrong_number():
    """Every step in bfloat16, and all else right: the profile "numbers" has nothing against it."""

    def narrow(query, key, value, *, is_causal=False):
        def step(x):
            return np.asarray(x, np.float32).astype(query.dtype).astype(np.float32)

        query_, key_, value_ = map(step, (query, key, value))
        scores = step(step(query_ * query.shape[-1] ** -0.5) @ key_.swapaxes(-1, -2))
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        powers = step(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        return (step(powers / step(powers.sum(axis=-1, keepdims=True))) @ value_).astype(query.dtype)

    given = {"arrays": "numpy", "only": ["plain", "causal"], "level": "forward", "dtype": "bfloat16"} | {
        "sizes": dict(N=2, G=2, T=48, S=300, D=128)
    }
    assert check(narrow, profile="numbers", **given).ok
    causes = check(narrow, profile="law", **given).causes
    assert not {cause.harm for cause in causes} & {Harm.NUMBERS, Harm.GRADIENTS}, causes
    assert ROUNDED in {cause.name for cause in causes if cause.harm is Harm.ROBUSTNESS}


def test_a_mistake_that_is_accepted_has_no_gradient_that_follows_from_it():
    def found(name, harm, where=""):
        return Cause(name, harm, (name,), where=where)

    accepted = found("refused: value length", Harm.NUMBERS, "a file")
    wrong = found("gradient: ladder: plain, normal, B=2 N=8 G=1 T=4 S=2048 D=40 V=40", Harm.GRADIENTS)
    assert folded([accepted, wrong]) == [accepted, wrong]


def test_the_gradient_through_what_dropout_kept_may_round_as_the_dense_formula_does():
    torch = pytest.importorskip("torch")
    given = {"adapter": "torch-sdpa", "only": ["gradient: in blocks: dropout, 1100"]}
    report = check(torch.nn.functional.scaled_dot_product_attention, **given | {"seed": 1})
    assert report.counts() == {"ok": 1}


def test_a_long_sum_may_be_taken_one_after_the_other():
    """As torch, MLX and onnxruntime add; NumPy adds in pairs, and its formula is nearly exact."""

    def in_order(query, key, value):
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / np.cumsum(powers, axis=-1, dtype=np.float32)[..., -1:]
        return np.cumsum(weights[..., None] * value[..., None, :, :], axis=-2, dtype=np.float32)[..., -1, :]

    for seed in range(3):
        report = check(in_order, arrays="numpy", only=["long row of ones"], profile="law", seed=seed, level="forward")
        assert report.counts() == {"ok": 1}
