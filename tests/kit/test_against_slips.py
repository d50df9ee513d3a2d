"""`attendax diff` of functions that differ by a slip that is no convention: nothing false, and never "Equal"."""

import ast
import re
import time

import numpy as np
import pytest

from attendax.conformance.against import asking, diff, forms, neighbours, remote, report
from attendax.conformance.cases.case import Inputs
from attendax.conformance.conventions import formula
from attendax.conformance.conventions.values import LAW
from attendax.exits import Refusal
from pairs_of_functions import scored, softmax


def masked(query, key, value, mask=None):
    scores = scored(query, key)
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def causal(q, k, v, causal=False):
    return masked(q, k, v, np.tri(q.shape[-2], k.shape[-2], dtype=bool) if causal else None)


def causal_ignored(q, k, v, causal=False):
    return masked(q, k, v)


def first_head(q, k, v, mask=None):
    return masked(q, k, v, None if mask is None else mask[:, :1])


def first_batch(q, k, v, mask=None):
    return masked(q, k, v, None if mask is None else mask[:1])


def ahead_from_65_on(q, k, v, causal=False):
    T, S = q.shape[-2], k.shape[-2]
    return masked(q, k, v, np.tri(T, S, T > 64, dtype=bool) if causal else None)


def window(q, k, v, window=None):
    i, j = np.indices((q.shape[-2], k.shape[-2]))
    return masked(q, k, v, None if window is None else abs(i - j) < window)


def wider(q, k, v, window=None):
    return globals()["window"](q, k, v, None if window is None else 2 * window)


def sides(q, k, v, window_size=(-1, -1)):
    i, j = np.indices((q.shape[-2], k.shape[-2]))
    left, right = (x if x >= 0 else 999 for x in window_size)
    return masked(q, k, v, (j >= i - left) & (j <= i + right))


def windowed(q, k, v, mask=None, window=None):
    i, j = np.indices((q.shape[-2], k.shape[-2]))
    allowed = np.ones(i.shape, bool) if window is None else abs(i - j) <= window
    return masked(q, k, v, allowed if mask is None else allowed & mask)


def left_twice(q, k, v, window_size=(-1, -1)):
    return sides(q, k, v, (window_size[0], window_size[0]))


def one_less(q, k, v, window_size=(-1, -1)):
    left, right = window_size
    return sides(q, k, v, (left, right - 1 if right > 0 else right))


def biased(q, k, v, bias=None):
    return softmax(scored(q, k) + (0 if bias is None else bias)) @ v


def bias_taken_away(q, k, v, bias=None):
    return biased(q, k, v, None if bias is None else -bias)


def repeated(q, k, v):
    times = q.shape[1] // k.shape[1]
    return masked(q, np.repeat(k, times, 1), np.repeat(v, times, 1))


def values_tiled(q, k, v):
    times = q.shape[1] // k.shape[1]
    return masked(q, np.repeat(k, times, 1), np.tile(v, (1, times, 1, 1)))


def first_value(q, k, v, mask=None):
    return (
        masked(q, k, v, mask) if mask is None else np.where(mask.any(-1)[..., None], masked(q, k, v, mask), v[:, :, :1])
    )


def logged(q, k, v, return_lse=False):
    lse = np.log(np.exp(scored(q, k)).sum(-1))
    return (masked(q, k, v), lse) if return_lse else masked(q, k, v)


def log_of_more(q, k, v, return_lse=False):
    return (masked(q, k, v), logged(q, k, v, True)[1] + 0.5) if return_lse else masked(q, k, v)


def sharpened(q, k, v, sharpness=1.0):
    return masked(q * sharpness, k, v)


def sharpened_twice(q, k, v, sharpness=1.0):
    return masked(q * sharpness**2, k, v)


def here(a, b):
    """The report on two functions, both in this process."""
    one, other = (remote.Function(fn, in_process=True) for fn in (a, b))
    return report.compare(report.described(one, "A"), report.described(other, "B"))


SLIPS = [
    (window, wider, "window 1"),
    (sides, left_twice, "window_size (3, 0)"), (sides, one_less, "window_size (1, 1)"),
    (masked, first_value, "mask [[False"),
    (logged, log_of_more, "return_lse True"),
    (sharpened, sharpened_twice, "sharpness 0.25"),
]  # fmt: skip


@pytest.mark.smoke(1)
@pytest.mark.parametrize(("a", "b", "shown"), SLIPS, ids=[b.__name__ for _, b, _ in SLIPS])
def test_an_option_of_both_sets_them_apart(a, b, shown):
    """The smallest input and both numbers are told, and no keyword that was compared is said not to be."""
    found = here(a, b)
    assert not found.explained
    text = found.text()
    assert text.startswith("Not explained: ")
    assert shown in text
    assert ": A gives " in text
    assert "alone has" not in text
    assert here(a, a).equal


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (masked, first_head, "has first head: mask[:, :1]"),
        (masked, first_batch, "has first batch: mask[:1]"),
        (causal, causal_ignored, "ignores it"),
        (biased, bias_taken_away, "-bias"),
    ],
)
def test_what_is_read_otherwise_is_named(a, b, said):
    """A mask of which the first head alone is read, and a bias that is subtracted."""
    found = here(a, b)
    assert found.explained, found.text()
    assert said in found.text()


def scaled_by_heads(q, k, v):
    return masked(q * q.shape[1] ** -0.5, k, v)


def test_a_scale_that_one_head_does_not_show():
    found = here(masked, scaled_by_heads)
    assert str(found.differences[0]) == "scale if none is given: A multiplies by 1/√D; B multiplies by 1/√(N·D)"
    assert found.differences[0].shown.startswith("N=2, G=2, ")
    assert found.explained


def test_what_is_wrong_at_long_texts_alone_is_not_equal():
    found = here(causal, ahead_from_65_on)
    assert not found.equal
    assert not found.explained
    assert "T=300" in found.text()


def by_blocks(block):
    def attention(q, k, v, causal=False):
        i, j = np.arange(q.shape[2])[:, None] // block, np.arange(k.shape[2]) // block
        return masked(q, k, v, (j <= i)[None, None] if causal else None)

    return attention


@pytest.mark.parametrize("block", [8, 64, 128, 256, 512])
def test_an_option_that_short_texts_do_not_show_is_not_ignored(block):
    found = here(causal, by_blocks(block))
    assert not found.differences
    assert "causal True: A gives" in found.text()
    assert "B's causal: ignored in some calls, and not for " in found.text()
    assert here(by_blocks(block), by_blocks(block)).equal
    assert not here(by_blocks(block), by_blocks(2 * block)).equal


def scaled(q, k, v, scale=None):
    return masked(q * (1.0 if scale is None else scale * q.shape[-1] ** 0.5), k, v)


def scaled_unless_0(q, k, v, scale=None):
    return scaled(q, k, v, scale or None)


def divided(q, k, v, temperature=None):
    return scaled(q, k, v, None if temperature is None else 1 / np.float32(temperature))


def test_a_scale_of_0_is_no_scale_that_is_not_given():
    for a, b in ((scaled, scaled_unless_0), (scaled_unless_0, scaled)):
        assert "scale 0.0: A gives 1" in here(a, b).text()
    assert here(scaled, divided).explained


def first_row(q, k, v, mask=None):
    """As a padding mask is read: the first query's row of it counts for all."""
    return masked(q, k, v, None if mask is None else mask[:, :, :1])


def heads_as_batches(q, k, v, mask=None):
    """A mask (B, N, T, S) where B = N is read as (N, B, T, S)."""
    return masked(q, k, v, mask if mask is None or mask.shape[0] != mask.shape[1] else mask.swapaxes(0, 1))


def padded_to_a_power_of_two(q, k, v, mask=None):
    D = q.shape[-1]
    return masked(q * (D / 2 ** np.ceil(np.log2(D))) ** 0.5, k, v, mask)


@pytest.mark.parametrize(
    ("fn", "shown"),
    [(first_row, "mask [[["), (padded_to_a_power_of_two, "D=12: "), (heads_as_batches, "mask of shape (6, 6")],
)
def test_rows_of_a_mask_and_odd_widths_set_two_apart(fn, shown):
    found = here(masked, fn)
    assert not found.equal
    assert shown in found.text()


@pytest.mark.smoke
def test_windows_of_two_sides_by_a_mask():
    """The adapter has each of the two sides, and -1 as no limit."""
    found = here(sides, windowed)
    assert found.explained, found.text()
    names = {}
    exec(found.adapter, names)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 2, 6, 4)).astype(np.float32) for _ in range(3)]
    for pair in ((3, 0), (0, 2), (-1, -1), (-1, 0), (2, 2)):
        np.testing.assert_allclose(
            names["adapted"](*arrays, window_size=pair), sides(*arrays, window_size=pair), atol=1e-5
        )


def causal_unless_told(q, k, v, causal=True):
    return globals()["causal"](q, k, v, causal)


def test_a_default_is_not_what_is_always_so():
    found = here(causal, causal_unless_told)
    assert [str(x) for x in found.differences] == ["where is_causal is not given: A is not causal; B is causal"]
    assert found.explained


def with_weights(q, k, v, mask=None):
    return masked(q, k, v, mask).swapaxes(1, 2), softmax(scored(q, k))


def always_logged(q, k, v):
    return logged(q, k, v, return_lse=True)


def test_the_first_of_several_results_is_compared():
    found = here(masked, with_weights)
    assert found.explained, found.text()
    assert [x.name for x in found.differences] == ["layout"]
    assert found.notes == ("B's second result (it always gives several arrays, of which the first is compared)",)
    assert [str(x) for x in here(logged, always_logged).differences] == [
        "names: A has return_lse; B has none (always on)"
    ]


def refuses_both(q, k, v, mask=None, causal=False, scale=None):
    if causal and mask is not None:
        raise ValueError("not both")
    q = q if scale is None else q * (scale * q.shape[-1] ** 0.5)
    return globals()["causal"](q, k, v, causal) if mask is None else masked(q, k, v, mask)


def test_what_is_refused_is_in_no_other_order():
    assert here(masked, refuses_both).notes == ("causal, scale, which B alone has",)


def starred(*args):
    return masked(*args)


def nothing():
    return 1


@pytest.mark.smoke
def test_parameters_that_are_no_three_arrays():
    assert here(masked, starred).explained
    with pytest.raises(Refusal, match=r"B, .*nothing, has to be given nothing, expected query, key and value"):
        here(masked, nothing)
    with pytest.raises(Refusal, match="'' is not module:function"):
        diff("", masked)


def keys_dropped(q, k, v, padding_mask=None):
    return masked(q, k, v, None if padding_mask is None else ~padding_mask)


def test_masks_of_whole_numbers():
    """~1 is -2, so an adapter asks what is 0."""
    names = {}
    exec(here(masked, keys_dropped).adapter, names)
    mask = np.array([[1, 0, 1], [1, 1, 0]])[None, None]
    q, k, v = (np.arange(1.0, 1 + 4 * t).reshape(1, 1, t, 4) for t in (2, 3, 3))
    np.testing.assert_allclose(names["adapted"](q, k, v, mask=mask), masked(q, k, v, mask), rtol=1e-6)


def over_heads(q, k, v):
    weights = np.exp(scored(q, k))
    return weights / weights.sum(1, keepdims=True) @ v


def heads_turned(q, k, v):
    return masked(q, k[:, ::-1], v[:, ::-1])


@pytest.mark.parametrize("slip", [over_heads, heads_turned])
def test_a_slip_is_no_layout(slip):
    """Heads that are computed alone would hide it; the function takes them together."""
    found = here(masked, slip)
    assert not found.explained
    assert not found.differences
    assert ": A gives " in found.text()


def layer(params, x):
    return x @ params["out_kernel"]


@pytest.mark.smoke
def test_a_layer_without_the_option():
    with pytest.raises(Refusal, match="layers are compared with --layers"):
        here(layer, masked)


def test_another_scale_is_not_called_a_softmax_in_bfloat16():
    """Both round their scores to bfloat16; only the scale is another."""
    torch = pytest.importorskip("torch")

    def usual(q, k, v):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v

    def unscaled(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    found = here(unscaled, usual)
    assert [x.name for x in found.differences] == ["scale"]
    assert found.explained, found.text()


def sleeps(query, key, value):
    time.sleep(60)
    return value


def test_a_call_has_a_time_limit(monkeypatch):
    """One line, not a limit for each of hundreds of calls."""
    monkeypatch.setattr(remote, "CALL_SECONDS", 0.5)
    with pytest.raises(Refusal, match=r"sleeps: a call with 3 small arrays: no answer in 0\.5 seconds"):
        diff(masked, sleeps)


def of_form(**values):
    """A function of NumPy by the law, but for some values."""
    form = LAW.but(**values)

    def attend(query, key, value, mask=None, is_causal=False, bias=None, softcap=None, scale=None):
        arrays = {"query": query, "key": key, "value": value} | ({} if bias is None else {"bias": bias})
        options = {"mask": mask, "is_causal": is_causal, "softcap": softcap, "scale": scale}
        given = Inputs(arrays, {k: x for k, x in options.items() if x is not None}, {})
        with np.errstate(all="ignore"):
            return formula.forward(given, form)["out"].astype(np.float32)

    return attend


def read_back(example):
    """The call that an example tells, and the two numbers."""
    call, _, gives = example.partition(": A gives ")
    words = (word.partition(" ") for word in re.split(r", (?=[a-z_]+ )", call.partition(": ")[2]))
    given = {name: ast.literal_eval(x) for name, _, x in words}
    arrays = {k: np.array(x, bool if k == "mask" else np.float32) for k, x in given.items() if isinstance(x, list)}
    arrays |= {k: x.reshape((1,) * (4 - x.ndim) + x.shape) for k, x in arrays.items()}
    return given | arrays, [float(x) for x in gives.split(", B ")]


SEVERAL = [
    {"scale": "1/D", "causal": "aligned to the end"},
    {"order": "scale, bias, softcap, mask", "mask": "first batch"},
    {"scale": "1", "softcap": "tanh(s / cap)", "bias": "subtracted"},
    {"given_scale": "squared", "causal": "aligned to the start, and one key ahead", "empty": "the mean of the values"},
    {"mask": "first head", "bias": "first head"},
    {"order": "bias, scale, softcap, mask", "causal": "without its own key"},
]


@pytest.mark.smoke(1)
@pytest.mark.parametrize("values", SEVERAL, ids=lambda x: ", ".join(x))
def test_each_example_shows_its_line_alone(values):
    """Given what is printed, the two differ as a function does that has this one value of B."""
    a, b = of_form(), of_form(**values)
    found = here(a, b)
    assert found.explained, found.text()
    told = {report.comparing.SOLVED_AXES[x.name][0]: x for x in found.differences}
    assert set(told) == set(values)
    for axis, difference in told.items():
        given, (mine, theirs) = read_back(difference.shown)
        one, other, alone = (fn(**given) for fn in (a, b, of_form(**{axis: values[axis]})))
        assert np.isclose(one, mine, rtol=1e-5).any(), difference
        assert np.isclose(other, theirs, rtol=1e-5).any(), difference
        np.testing.assert_allclose(alone, other, rtol=1e-4, err_msg=str(difference))
        assert not np.allclose(alone, one, rtol=1e-4), difference


def dropped_for_drop(q, k, v, attn_mask=None):
    return masked(q, k, v, None if attn_mask is None else ~attn_mask)


@pytest.mark.smoke
def test_options_are_printed_as_a_is_given_them():
    """A takes True for what is dropped: so the example has it."""
    shown = here(dropped_for_drop, masked).differences[0].shown
    assert "attn_mask [[False, True]]: A gives 1, B 2" in shown


def mask_or_causal(q, k, v, mask=None, causal=False):
    return globals()["causal"](q, k, v, causal) if mask is None else masked(q, k, v, mask)


def mask_and_causal(q, k, v, mask=None, causal=False, scale=None):
    rule = np.tri(q.shape[-2], k.shape[-2], dtype=bool) if causal else np.True_
    q = q if scale is None else q * (scale * q.shape[-1] ** 0.5)
    return masked(q, k, v, rule if mask is None else mask & rule)


@pytest.mark.smoke
def test_an_option_that_another_one_hides():
    found = here(mask_and_causal, mask_or_causal)
    assert [x.name for x in found.differences] == ["joins"]
    assert "causal is left out if a mask is given" in str(found.differences[0])
    assert found.explained, found.text()


@pytest.mark.smoke
def test_heads_of_keys_and_of_values_read_otherwise():
    found = here(repeated, values_tiled)
    assert found.explained
    assert str(found.differences[0]).endswith("B reads head n // (N // G) of keys, and n % G of values")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, n, 5, 4)).astype(np.float32) for n in (4, 2, 2)]
    names = {}
    exec(here(values_tiled, repeated).adapter, names)
    np.testing.assert_allclose(names["adapted"](*arrays), values_tiled(*arrays), atol=1e-5)


def needs_more(x, heads, rate):
    return x


def raises_always(query, key, value, num_heads):
    raise RuntimeError("no device")


@pytest.mark.parametrize("fn", [needs_more, raises_always])
def test_what_cannot_be_compared_is_refused(fn):
    """The exit status is then 2, not 1."""
    with pytest.raises(Refusal, match=r"B, .*(has to be given|raises on every call)"):
        here(over_heads, fn)


def of_sinks(
    query, key, value, mask=None, is_causal=False, sinks=None, return_lse=False, rule=np.logical_and, of_lse=1
):  # fmt: skip
    """Attention with sinks; rules joined by some function, and an lse that may leave the sinks out."""
    allowed = np.tri(query.shape[-2], key.shape[-2], dtype=bool) if is_causal else None
    allowed = allowed if mask is None else mask if allowed is None else rule(allowed, mask)
    scores = scored(query, key) if allowed is None else np.where(allowed, scored(query, key), -np.inf)
    logits = -np.inf if sinks is None else np.asarray(sinks, np.float32).reshape(-1, 1, 1)
    top = np.maximum(scores.max(-1, keepdims=True, initial=-1e30), logits)
    powers, sink = np.exp(scores - top), np.exp(logits - top)
    keys = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(keys + of_lse * sink))[..., 0]
    out = powers @ value / np.where(keys + sink == 0, 1, keys + sink)
    return (out.astype(query.dtype), lse) if return_lse else out.astype(query.dtype)


def test_sinks_are_compared_with_the_lse_and_under_an_adapter():
    assert "given to both unchanged: sinks" in diff(of_sinks, of_sinks).text()

    def lse_of_keys(*args, **options):
        return of_sinks(*args, **options, of_lse=0)

    def either(query, key, value, mask=None, is_causal=False, sinks=None, return_lse=False):
        return of_sinks(query, key, value, mask, is_causal, sinks, return_lse, rule=np.logical_or)

    def keys_alone(query, key, value, mask=None, is_causal=False, sinks=None, return_lse=False):
        return lse_of_keys(query, key, value, mask, is_causal, sinks, return_lse)

    found = diff(of_sinks, keys_alone)
    assert not found.equal
    assert "sinks 0.25, return_lse True" in found.why
    found = diff(of_sinks, either)
    assert [difference.name for difference in found.differences] == ["joins"]
    assert found.explained, found.text()


def by_width(query, key, value, mask=None, scale=None):
    """Values narrower than keys are read with the keys' stride; the options are right."""
    (S, V), D = value.shape[-2:], query.shape[-1]
    if V < D:
        flat = value.reshape(*value.shape[:-2], S * V)
        value = flat[..., (np.arange(S)[:, None] * D + np.arange(V)) % (S * V)]
    scores = scored(query, key) * (1 if scale is None else np.float32(scale * query.shape[-1] ** 0.5))
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def test_options_are_not_blamed_for_a_plain_call_that_is_wrong():
    def as_wide(query, key, value, mask=None, scale=None):
        V = value.shape[-1]
        wide = np.concatenate([value, np.zeros((*value.shape[:-1], query.shape[-1]), value.dtype)], -1)
        return by_width(query, key, wide, mask, scale)[..., :V]

    found = diff(as_wide, by_width).text()
    assert "scale" not in found.replace("scale where", "")
    assert "mask" not in found


def test_dropout_of_jax_is_compared_by_a_mean():
    """It needs a key, which is given."""
    jax = pytest.importorskip("jax")

    def attention(query, key, value, dropout_rate=0.0, dropout_rng=None, scaled=True):
        weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
        if dropout_rate:
            kept = jax.random.bernoulli(dropout_rng, 1 - dropout_rate, weights.shape)
            weights = weights * kept / (1 - dropout_rate if scaled else 1)
        return weights @ value

    def unscaled(query, key, value, dropout_rate=0.0, dropout_rng=None):
        return attention(query, key, value, dropout_rate, dropout_rng, scaled=False)

    (difference,) = diff(attention, unscaled).differences
    assert (difference.name, difference.b) == ("dropout", "does not scale what is kept")


def with_lse(base, empty):
    """Attention with a log-sum-exp in a base; ``empty`` are the scores of keys beyond a length."""

    def attention(query, key, value, mask=None, key_lengths=None, return_lse=False):
        scores = scored(query, key)
        if key_lengths is not None:
            beyond = np.arange(scores.shape[-1]) >= np.asarray(key_lengths)[:, None]
            scores = np.where(beyond[:, None, None], empty, scores)
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        largest = scores.max(-1, keepdims=True)
        largest = np.where(np.isfinite(largest), largest, 0)
        powers = np.exp(scores - largest)
        total = powers.sum(-1, keepdims=True)
        with np.errstate(all="ignore"):
            lse = (largest + np.log(total))[..., 0] / np.log(base)
        out = powers / np.where(total == 0, 1, total) @ value
        return (out, lse) if return_lse else out

    return attention


def test_a_query_without_any_key_refutes_no_base_of_the_log_sum_exp():
    kinds = {"mask": "BNTS/True attends", "key_lengths": "", "return_lse": "BNT"}
    options = {name: forms.Option(name, kind) for name, kind in kinds.items()}
    fn = remote.Function(with_lse(2, -1e9), in_process=True)
    natural = forms.Form(options=options, arrays="numpy", defaults=fn.defaults)
    candidate = asking.Candidate(fn, natural.but(lse="base 2"))
    assert neighbours.refuted(candidate, ("lse",), natural, asking.GENERAL) is None
    wrong = candidate.by(natural)
    assert neighbours.refuted(wrong, ("lse",), candidate.form, asking.GENERAL) is not None
