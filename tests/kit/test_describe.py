"""`attendax describe`: the right reading of functions as people write them, and one clear message for all others."""

import contextlib
import importlib
import inspect
import json
import tomllib

import jax
import numpy as np
import pytest

import stated
from attendax import cli
from attendax.conformance import Verdict, check
from attendax.conformance.against import remote
from attendax.conformance.contract import Contract, describing
from attendax.conformance.conventions.table import CONVENTION, DEFECT, TABLE, UNUSUAL
from attendax.exits import Refusal
from places import KIT

READINGS = json.loads((KIT / "contract" / "readings.json").read_text("utf-8"))
QUICK = ("in_numpy:btnd", "in_numpy:padded", "in_numpy:vllm_strict", "in_torch:flash_tiled", "in_torch:hf_eager")


def described(fn, seconds=60.0):
    """The contract of a function in this process."""
    return describing.Describer(remote.Function(fn, in_process=True), seconds).contract()


def reading(contract):
    """How it is called, its keywords, its conventions, and what is not understood."""
    form = contract.form
    called = [form.layout, form.returned and f"-> {form.returned}", form.pack]
    called += [form.order] if form.order != "query, key, value" else []
    options = form.options.items()
    keywords = {option.name: ours + (f": {option.form}" if option.form else "") for ours, option in options}
    return [
        " ".join(filter(None, called)),
        keywords,
        [f"{x.kind}: {x.axis} = {x.value}" for x in contract.meanings()],
        sorted(contract.unread),
    ]


@pytest.mark.smoke(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name.startswith("in_jax") or (k % 4 > 0 and name not in QUICK)))
        for k, name in enumerate(READINGS)
    ],
)
def test_a_function_as_people_write_it(name):
    module, _, fn = name.partition(":")
    if module.endswith("torch"):
        pytest.importorskip("torch")
    with jax.numpy_rank_promotion("allow") if module == "in_jax" else contextlib.nullcontext():
        assert reading(described(getattr(importlib.import_module(f"contract.{module}"), fn))) == READINGS[name]


def test_readings_of_all_functions():
    """No reading is that of a function with one line off as well, unless the line is another convention."""
    same = [name for name in READINGS if "_" in name.partition(":")[2] and READINGS.get(name.rpartition("_")[0])]
    alike = [name for name in same if READINGS[name] == READINGS[name.rpartition("_")[0]]]
    assert len(READINGS) >= 80
    assert alike == ["in_torch:window_wide"]


def of(module, name):
    if module.endswith("torch"):
        pytest.importorskip("torch")
    return getattr(importlib.import_module(f"contract.{module}"), name)


def test_windows_of_one_number_are_told_apart():
    said = [str(described(of("in_torch", name))) for name in ("window", "window_wide")]
    assert "window_size: window, a number: w keys, its own among them, before" in said[0]
    assert "window_size: window, a number: w keys beside its own, before" in said[1]


@pytest.mark.smoke
def test_each_kind_has_what_it_needs():
    """A convention has a source; the law is first, and is of none of the three kinds."""
    for axis, values in TABLE.items():
        for k, (value, line) in enumerate(values.items()):
            assert line.kind in (CONVENTION, UNUSUAL, DEFECT), (axis, value)
            assert bool(line.source) or line.kind != CONVENTION, (axis, value)
            assert k or (line.kind == DEFECT and not line.source), (axis, value)  # nobody asks for the law's
            assert line.words or not k or line.kind == DEFECT, (axis, value)


def test_a_scale_of_its_own_is_unusual():
    """A model may have one, as Gemma 2 has: 1/√256 for heads of any width."""

    def gemma(query, key, value):
        scores = query @ key.swapaxes(-1, -2) / 16
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ value

    assert [(x.kind, x.axis) for x in described(gemma).meanings()] == [("unusual", "scale")]


def test_in_words():
    contract = described(of("in_torch", "flash_ahead"))
    text = str(contract)
    assert "arrays    query, key, value as (B, T, N, D), fewer key heads allowed\n" in text
    assert "          window_size: window, both sides, -1 is no limit\n" in text
    assert "          dropout_p: changes nothing\n" in text
    assert "  window    a window is aligned to the end of the keys   (FlashAttention 2.3)\n" in text
    before, _, defects = text.partition("Defects: ")
    assert "one key ahead" in defects
    assert "one key ahead" not in before
    assert contract.means("causal") == "aligned to the end, and one key ahead"


@pytest.mark.smoke
def test_as_toml():
    contract = described(of("in_numpy", "vllm"))
    assert tomllib.loads(contract.toml()) == {
        "function": "contract.in_numpy:vllm",
        "called": {"arrays": "numpy", "layout": "TND", "order": "query, key, value", "returns": "TND"},
        "keywords": {"scale": "scale: a factor", "causal": "is_causal"},
        "required": {"scale": "D ** -0.5"},
        "means": {"causal": "aligned to the end", "empty": "the mean of the values"},
    }
    unread = tomllib.loads(described(of("in_numpy", "mystery")).toml())["unread"]
    assert unread == {"slope": "its name is not known"}


@pytest.mark.parametrize(
    ("module", "name"),
    [("in_numpy", "btnd"), pytest.param("in_torch", "flash", marks=pytest.mark.slow),
     pytest.param("in_numpy", "megatron", marks=pytest.mark.slow)],
)  # fmt: skip
def test_under_its_adapter_the_function_is_right(tmp_path, module, name):
    contract = described(of(module, name))
    names = {"__name__": "adapter"}
    exec(contract.adapter(), names)
    given = dict(level="forward", seed=0, budget=0, only="causal", in_process=True)
    report = stated.check(names["adapted"], means={x: contract.means(x) for x in ("causal", "empty")}, **given)
    assert not report.failures, str(report)


def test_a_window_without_a_limit():
    adapted = {"__name__": "adapter"}
    exec(described(of("in_torch", "flash")).adapter(), adapted)
    import torch

    q = torch.ones(1, 1, 3, 2)
    v = torch.arange(3.0).reshape(1, 1, 3, 1)
    assert adapted["adapted"](q, q, v, window=(None, 0)).flatten().tolist() == pytest.approx([0.0, 0.5, 1.0])


# What cannot be described.


def refused(fn, **more):
    with pytest.raises(Refusal) as caught:
        described(fn, **more)
    return str(caught.value)


def raises(q, k, v):
    raise RuntimeError("the kernel is not built")


def gives_nothing(q, k, v):
    return None


def no_arrays(text):
    return text.upper()


def sloped(q, k, v):
    """(B, T, N, D), of no known formula."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = scores - 0.05 * abs(np.arange(q.shape[2])[:, None] - np.arange(k.shape[2]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def test_one_clear_message():
    assert "raises; the first said: RuntimeError: the kernel is not built; write a function of" in refused(raises)
    assert "it gives NoneType, expected an array" in refused(gives_nothing)
    assert "write a function of query, key and value" in refused(no_arrays)
    assert "by a name that is not known: wrap it in a function" in refused(lambda q, k, v, blocks: q)


def test_the_nearest_form_is_told():
    said = refused(sloped, seconds=3.0)
    assert "no known formula gives its result without options" in said
    assert "nearest: query, key, value as (B, T, N, D) with scale 1" in said


def test_a_call_that_never_returns(monkeypatch, tmp_path, capsys):
    (tmp_path / "endless.py").write_text("def attention(q, k, v):\n    while True:\n        pass\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(describing, "CALL_SECONDS", 0.5)
    assert cli.main(["describe", "endless:attention"]) == 2
    assert "a call with 3 small arrays: no answer in 0.5 seconds" in capsys.readouterr().err


def test_what_the_limit_cuts_is_told(monkeypatch):
    describer = describing.Describer(remote.Function(of("in_torch", "flash"), in_process=True), 1.0)
    monkeypatch.setattr(describer.limit, "spent", lambda: 0.0 if describer.limit.calls < 12 else 2.0)
    contract = describer.contract()
    assert isinstance(contract, Contract)
    assert contract.cut
    assert "no time to find out; --limit SECONDS gives more" in contract.unread.values()


def test_ignored_is_what_is_so_as_each_that_it_may_be():
    """Numbers that are all true are no reason to say that a mask is ignored."""

    def rolled(q, k, v, mask=None):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        scores = scores if mask is None else np.where(np.roll(mask, 1, -1), scores, -1e9)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v

    assert described(rolled).unread == {"mask": "no known meaning gives its effect"}


def weighted(weights, norm=lambda x: x, scale=lambda S: 1.0):
    """Attention in NumPy, (B, N, T, D), by other weights, norms of queries and keys, or a factor of the scale."""

    def attention(query, key, value):
        s = norm(query) @ norm(key).swapaxes(-1, -2) * query.shape[-1] ** -0.5 * scale(key.shape[-2])
        return weights(s) @ value

    return attention


def shares(s, added=0.0):
    top = np.maximum(s.max(-1, keepdims=True), 0)
    e = np.exp(s - top)
    return e / (e.sum(-1, keepdims=True) + added * np.exp(-top))


@pytest.mark.parametrize(
    ("fn", "axis", "value"),
    [
        (weighted(lambda s: shares(s, 1.0)), "weights", "softmax, 1 added"),
        (weighted(lambda s: 1 / (1 + np.exp(-s))), "weights", "sigmoid"),
        (weighted(lambda s: 1 / (1 + s.shape[-1] * np.exp(-s))), "weights", "sigmoid, less log S"),
        (weighted(lambda s: np.maximum(s, 0)), "weights", "ReLU"),
        (weighted(lambda s: np.maximum(s, 0) / s.shape[-1]), "weights", "ReLU over S"),
        (weighted(lambda s: shares(np.where(s >= np.sort(s)[..., [-4]], s, -np.inf)) if s.shape[-1] > 4 else shares(s)),
         "weights", "top 4"),
        (weighted(shares, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)), "norm", "unit"),
        (weighted(shares, lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True))), "norm", "root mean square"),
        (weighted(shares, scale=np.log), "scale", "log(S)·1/√D"),
    ],
)  # fmt: skip
def test_what_people_compute_instead_of_a_softmax_or_a_scale(fn, axis, value):
    assert [(x.kind, x.axis, x.value) for x in described(fn).meanings()] == [("unusual", axis, value)]


def with_parameter(name):
    """The signature of a function with one more parameter."""
    signature = inspect.signature(lambda query, key, value, other=None: None)
    parameters = [x.replace(name=name) if x.name == "other" else x for x in signature.parameters.values()]
    return signature.replace(parameters=parameters)


@pytest.mark.parametrize(
    ("name", "of_scores", "factor", "words"),
    [
        (
            "alibi_slopes",
            lambda x, i, j: -x[:, None, None] * abs(i + j.shape[-1] - len(i) - j),
            None,
            "|i + S - T - j|",
        ),
        ("alibi_slopes", lambda x, i, j: x[:, None, None] * (j - i), None, "adds slope · j"),
        ("alibi_slopes", lambda x, i, j: x[:, None, None] * (j + i % 2 * j), None, ""),
        ("head_mask", None, lambda x, T: x[:, None, None], "a factor for each head"),
        ("head_mask", None, lambda x, T: 1 - x[:, None, None], ""),
        ("query_lengths", None, lambda x, T: (np.arange(T) < x[:, None])[:, None, :, None], "lengths of queries"),
        ("query_lengths", None, lambda x, T: (np.arange(T) < x[:, None] - 1)[:, None, :, None], ""),
        ("op", None, lambda x, T: 2.0, "not tested"),
        ("max_seqlen", None, lambda x, T: (np.arange(T) < x)[:, None], "not tested"),
    ],
)
def test_parameters_that_no_case_asks_for(name, of_scores, factor, words):
    def attention(query, key, value, **more):
        x, (T, S) = more.get(name), (query.shape[-2], key.shape[-2])
        s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        s = s if x is None or of_scores is None else s + of_scores(x, np.arange(T)[:, None], np.arange(S)[None])
        return shares(s) @ value * (1 if x is None or factor is None else factor(x, T))

    attention.__signature__ = with_parameter(name)
    contract = described(attention)
    assert list(contract.unread) == ([] if words else [name])
    assert not words or words in contract.idle[0]


@pytest.mark.parametrize(("name", "kind"), [("kv_mask", "BS/True attends"), ("use_causal", ""), ("score_cap", "")])
def test_a_keyword_is_known_by_a_part_of_its_name(name, kind):
    def attention(query, key, value, **more):
        x, (T, S) = more.get(name), (query.shape[-2], key.shape[-2])
        s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        if name == "score_cap":
            s = s if x is None else x * np.tanh(s / x)
        elif x is not None and x is not False:
            s = np.where(np.tri(T, S, dtype=bool) if name == "use_causal" else x[:, None, None], s, -np.inf)
        return shares(s) @ value

    attention.__signature__ = with_parameter(name)
    contract = described(attention)
    assert (name, kind) in [tuple(x) for x in contract.form.options.values()]
    assert not contract.unread


def with_second(second):
    def attention(query, key, value):
        s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        return shares(s) @ value, second(s)

    return attention


def test_a_second_result_of_one_number_for_each_query_is_a_log_sum_exp_or_not_understood():
    largest = described(with_second(lambda s: s.max(-1)))
    assert "one number for each query" in largest.unread["second result"]
    assert not described(with_second(shares)).unread
    assert not described(with_second(lambda s: np.log(np.exp(s).sum(-1)))).unread


def blocks(query, key, value, block=64):
    """It always gives the log-sum-exp."""
    return with_second(lambda s: np.log(np.exp(s).sum(-1)))(query, key, value)


def weights_unless(query, key, value, need_weights=True):
    """It gives weights unless it is told not to."""
    return with_second(shares)(query, key, value) if need_weights else (with_second(shares)(query, key, value)[0], None)


@pytest.mark.parametrize(
    ("fn", "words"), [(blocks, "changes nothing"), (weights_unless, "gives its first result alone")]
)
def test_words_for_parameters_that_leave_the_first_result(fn, words):
    assert described(fn).idle[0].endswith(words)


def test_the_nearest_form_is_not_that_of_the_best_call_alone():
    """Of a softmax in blocks that is wrong beyond a block, short calls are right."""

    def attention(query, key, value):
        s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        return shares(s) @ value if s.shape[-1] != 5 else shares(s) ** 2 @ value

    assert "where 0% of the results" not in refused(attention)


def test_a_mask_that_is_added_beside_an_always_causal_function():
    """It was called one that is added as 0 and 1."""

    def attention(query, key, value, mask=None):
        T, S = query.shape[-2], key.shape[-2]
        s = np.where(np.tri(T, S, S - T), query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5, -3e38)
        return shares(s if mask is None else s + mask) @ value

    contract = described(attention)
    assert contract.form.options["mask"].form == "BNTS/added, -inf drops"
    assert "fill" not in [x.axis for x in contract.meanings()]


def boolean_or_added(*, scaled=False, drops=False, capped=False):
    """A function whose mask may be boolean or a bias, and may scale or cap the bias too."""

    def attention(q, k, v, attn_mask=None, softcap=None):
        s = q @ np.swapaxes(k, -1, -2)
        root = q.shape[-1] ** 0.5
        s = s if scaled else s / root
        s = softcap * np.tanh(s / softcap) if softcap and not capped else s
        boolean = attn_mask is not None and attn_mask.dtype == bool
        s = s if boolean or attn_mask is None else s + attn_mask
        s = s / root if scaled else s
        s = softcap * np.tanh(s / softcap) if softcap and capped else s
        s = np.where(attn_mask ^ drops, s, -np.inf) if boolean else s
        return shares(s) @ v

    return attention


@pytest.mark.parametrize(
    ("fn", "kind", "order"),
    [
        (boolean_or_added(), "BNTS/True attends, or added", "scale, softcap, bias, mask"),
        (boolean_or_added(drops=True), "BNTS/True drops, or added", "scale, softcap, bias, mask"),
        (boolean_or_added(scaled=True, capped=True), "BNTS/True attends, or added", "bias, scale, softcap, mask"),
        (boolean_or_added(capped=True), "BNTS/True attends, or added", "scale, bias, softcap, mask"),
    ],
    ids=["attends", "drops", "scaled", "capped"],
)
def test_a_mask_that_is_boolean_or_added_is_also_a_bias(fn, kind, order):
    contract = described(fn)
    assert contract.form.options["mask"].form == kind
    assert contract.means("order") == order
    adapted = {"fn": fn}
    exec(contract.adapter().replace("# fn is", "# "), adapted)
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 3, 4)) for i in range(3))
    bias = np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(adapted["adapted"](q, k, v, bias=bias), fn(q, k, v, bias))
    with pytest.raises(NotImplementedError, match="a mask or a bias"):
        adapted["adapted"](q, k, v, bias=bias, mask=np.ones((3, 3), bool))


def test_a_boolean_mask_whose_numbers_are_not_added_is_no_bias():
    def nonzero(q, k, v, attn_mask=None):
        s = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
        return shares(s if attn_mask is None else np.where(attn_mask, s, -np.inf)) @ v

    assert described(nonzero).form.options["mask"].form == "BNTS/True attends"


def test_one_keyword_for_the_segment_ids_of_queries_and_keys():
    def attention(q, k, v, segment_ids=None):
        s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if segment_ids is not None:
            s = np.where(segment_ids[:, None, :, None] == segment_ids[:, None, None, :], s, -1e9)
        return shares(s) @ v

    contract = described(attention)
    assert tuple(contract.form.options["segments"]) == ("segment_ids", "segment_ids")
    assert "segment_ids: segment ids, the same for queries and keys" in str(contract)
    assert contract.tables()["keywords"] == {"segment_ids": "query_segment_ids"}
    report = check(attention, only=["segments"], level="forward", seed=1)
    assert next(x.case.name for x in report.cases if x.verdict is Verdict.OK) == "segments, T = S"
    assert not report.failures


def test_a_required_bias_beside_a_required_mask():
    """As Bloom has them: (B * N, 1, S), and True where masked."""

    def attention(q, k, v, alibi, attention_mask):
        (B, T, N, D), S = q.shape, k.shape[1]
        if alibi.shape != (B * N, 1, S):
            raise ValueError("alibi is (B * N, 1, S)")
        s = np.einsum("btnd,bsnd->bnts", q, k) * D**-0.5 + alibi.reshape(B, N, 1, S)
        s = np.where(np.broadcast_to(attention_mask, s.shape), -1e30, s)
        return np.einsum("bnts,bsnd->btnd", shares(s), v).reshape(B, T, -1)

    contract = described(attention)
    options = contract.form.options
    assert (options["bias"].form, options["mask"].form) == ("(BN)1S", "BNTS/True drops")
    assert "alibi: bias, (B·N, 1, S)" in str(contract)
    assert not contract.unread


@pytest.mark.parametrize("stale", ["output", "sum", "output and sum"])
def test_an_online_softmax_that_does_not_rescale(stale):
    def attention(q, k, v):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        top = np.full((*scores.shape[:-1], 1), -1e30)
        out = total = 0.0
        for start in range(0, k.shape[-2], 4):
            s = scores[..., start : start + 4]
            new = np.maximum(top, s.max(-1, keepdims=True))
            less, e = np.exp(top - new), np.exp(s - new)
            out = out * (1 if "output" in stale else less) + e @ v[..., start : start + 4, :]
            total = total * (1 if "sum" in stale else less) + e.sum(-1, keepdims=True)
            top = new
        return out / total

    meanings = [x.words for x in described(attention).meanings()]
    assert meanings == [
        f"blocks of keys are joined, but the {stale} is not multiplied by exp(old maximum - new maximum)"
    ]


def test_three_arrays_that_are_joined_on_the_last_axis():
    """As GPT-2 and timm have them: (B, T, 3 C) and a number of heads."""

    def joined(qkv, n_head):
        B, T, C = qkv.shape
        q, k, v = qkv.reshape(B, T, 3, n_head, C // 3 // n_head).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(B, T, -1)

    contract = described(joined)
    assert "query, key, value in one array as (B, T, 3·N·D)" in str(contract)
    assert contract.form.heads == "n_head"
    assert not list(contract.meanings())


@pytest.mark.smoke
def test_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["describe", "theirs:right", "--save", "mine.toml", "--adapter", "by_mine.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("theirs:right   NumPy\n\nHow it is called (")
    assert "causal is aligned to the end of the keys   (FlashAttention 2.1)" in out
    assert "\ndef adapted(query, key, value, *, is_causal=False):\n" in (tmp_path / "by_mine.py").read_text("utf-8")
    assert cli.main(["describe", "theirs:right", "--adapter", "by-mine.txt"]) == 2
    assert "--adapter got 'by-mine.txt', expected a file that Python can import" in capsys.readouterr().err
    assert tomllib.loads((tmp_path / "mine.toml").read_text("utf-8"))["means"]["causal"] == "aligned to the end"
    assert cli.main(["describe", "theirs:missing"]) == 2
    assert "theirs has no missing" in capsys.readouterr().err
    assert cli.main(["describe", "theirs:right", "--limit", "0"]) == 2
    assert "--limit got 0, expected more than 0 CPU seconds" in capsys.readouterr().err
    assert cli.main(["describe", "theirs:right", "--save", "none/mine.toml"]) == 2
    assert "cannot write none/mine.toml" in capsys.readouterr().err


def test_a_method_of_a_new_object():
    with pytest.raises(Refusal, match=r"if Layer\(\) makes an object, name 'contract.more_numpy:Layer\(\).attend'"):
        describing.describe("contract.more_numpy:Layer.attend")
    found = describing.describe("contract.more_numpy:Layer().attend")
    assert reading(found)[:2] == ["BNTD", {"mask": "mask: BNTS/True attends"}]


def with_window(q, k, v, window_size=(-1, -1), sinks=None):
    """Its window counts one key less to the left."""
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    left, right = (np.inf if x < 0 else x for x in window_size)
    s = np.where((j > i - left) & (j <= i + right), q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -1e9)
    rest = 0 if sinks is None else np.exp(sinks[:, None, None] - s.max(-1, keepdims=True))
    powers = np.exp(s - s.max(-1, keepdims=True))
    return powers / (powers.sum(-1, keepdims=True) + rest) @ v


def test_limits_of_a_wrong_window_and_sinks_are_said():
    text = str(described(with_window))
    assert "window_size: window, both sides, -1 is no limit\n" in text
    assert "a window counts one key less to the left" in text
    assert "sinks: a score of each head, that takes a share of the softmax" in text


def test_a_cap_that_is_built_in_has_a_number():
    """Any number: those of Grok-1 and Gemma 2 are conventions, others are unusual."""

    def capped(query, key, value):
        scores = 20 * np.tanh(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 / 20)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ value

    said = [(x.kind, x.axis, x.value, x.words) for x in described(capped).meanings()]
    assert said == [("unusual", "cap", "20", "scores are always capped: 20 · tanh(s / 20)")]


def plain(query, key, value):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    return shares(np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)) @ value


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Attention.", "convention"),  # of its source
        ("Causal self-attention.", "convention"),
        ("Bidirectional: causal masks are for decoders.", "unusual"),
        ("Non-causal attention.", "unusual"),
        ("Attention; causal masks are not supported.", "unusual"),
    ],
)
def test_who_says_causal_means_it(words, kind):
    """A function that is always causal is right if its name, its docstring or its source says so."""

    def attend(query, key, value):
        return plain(query, key, value)

    attend.__doc__ = words
    assert [(x.axis, x.kind) for x in described(attend).meanings()] == [("always", kind)]


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("attend", "As in T5, the scores are not scaled.", "convention"),
        ("attend", "Scaled dot products.", "unusual"),
        ("attend_unscaled", "", "unusual"),
    ],
)
def test_a_docstring_that_says_what_is_unusual_means_it(name, words, kind):
    def attend(query, key, value):
        return shares(query @ key.swapaxes(-1, -2)) @ value

    attend.__name__, attend.__doc__ = name, words
    assert [(x.axis, x.value, x.kind) for x in described(attend).meanings()] == [("scale", "1", kind)]


class Attends:
    def __call__(self, q, k, v):
        weights = np.exp(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5)
        return weights / weights.sum(-1, keepdims=True) @ v


class Scaled(Attends):
    def __init__(self, scale):
        self.scale = scale


def test_a_class_stands_for_a_new_object_unless_that_needs_arguments():
    assert [described(x).form.layout for x in (Attends, Attends())] == ["BNTD"] * 2
    assert described("test_describe:Attends").path == "test_describe:Attends()"
    report = check("test_describe:Attends", only=["plain"], level="forward", seed=0)
    assert (report.name, report.failures) == ("test_describe:Attends()", ())
    with pytest.raises(Refusal, match=r"Scaled is a class; write a line such as `layer = Scaled\(scale\)`"):
        described(Scaled)


def test_a_module_with_weights_is_refused_with_the_command_that_tests_layers():
    torch = pytest.importorskip("torch")

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.key = torch.nn.Linear(24, 8)

        def forward(self, x):
            return self.key(x)

    with pytest.raises(
        Refusal, match=r"key.weight, key.bias\), so test it as a layer: attendax check --layer .* --width 24"
    ):
        described(Head())


def test_a_bias_that_needs_all_of_its_axes_is_given_them():
    """Whoever takes parts of it along each axis raises if one is 1."""

    def attention(query, key, value, bias=None):
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        if bias is not None:
            if bias.shape != scores.shape:
                raise IndexError("out of range")
            scores = scores + bias
        return shares(scores) @ value

    contract = described(attention)
    assert contract.whole == ("bias",)
    assert "bias with all of its axes: none may be 1" in str(contract)
    assert 'whole_axes_of = ["bias"]' in contract.toml()
    only = ["bias (B, 1, 1, S)"]
    assert check(attention, level="forward", seed=7, budget=0, only=only, in_process=True).ok

    def with_mask(query, key, value, mask=None):  # which is added, so that it is a bias as well
        return attention(query, key, value, mask)

    assert check(with_mask, level="forward", seed=7, budget=0, only=only, in_process=True).ok


def test_a_window_that_is_on_is_no_limit_of_other_calls():
    """One by a part of its name as well."""

    def attention(query, key, value, one_sided_window=9):
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        i, j = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
        return shares(np.where(abs(i - j) <= one_sided_window, scores, -np.inf)) @ value

    contract = described(attention)
    assert contract.form.given == {"one_sided_window": 2**20}
    assert "window" in contract.form.options


def test_results_below_the_least_number_of_float32_may_be_0():
    """With 1 added to the sum of the softmax, scores near -400 leave nothing."""

    def attention(query, key, value, is_causal=False):
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        seen = np.tri(*scores.shape[-2:], dtype=bool) if is_causal else True
        scores = np.where(seen, scores, -np.inf)
        most = np.maximum(scores.max(-1, keepdims=True), 0)
        powers = np.exp(scores - most)
        return powers / (powers.sum(-1, keepdims=True) + np.exp(-most)) @ value

    report = check(
        attention, level="forward", seed=7, only=["in blocks: scores near -400, causal, 300"], in_process=True
    )
    assert [cause.name for cause in report.causes] == []


def test_a_module_without_imports_is_given_arrays_of_each_framework(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def attend(query, key, value):\n    return (query @ key.mT / query.size(-1) ** 0.5).softmax(-1) @ value\n"
    (tmp_path / "methods_alone.py").write_text(text, "utf-8")
    assert describing.Describer(remote.Function("methods_alone:attend"), 60.0).contract().form.arrays == "torch"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("attention_mask", "unusual"), ("valid_mask", "unusual"), ("keep_mask", "unusual"),
        ("invalid_mask", "convention"), ("key_padding_mask", "convention"), ("mask", "convention"),
    ],
)  # fmt: skip
def test_a_mask_that_hides_keys_against_its_name_is_unusual(name, kind):
    given = {"attend": None}
    text = f"""
def attend(query, key, value, {name}=None):
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    s = s if {name} is None else np.where({name}[:, None, None], -1e9, s)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ value
"""
    exec(text, {"np": np}, given)
    meanings = {x.axis: x.kind for x in described(given["attend"]).meanings()}
    assert meanings["mask"] == kind


def test_a_function_of_one_head_is_traced_once_under_jit():
    calls = []

    def one_head(q, k, v):  # (T, D)
        calls.append(q.shape)
        return jax.nn.softmax(q @ k.T * q.shape[-1] ** -0.5) @ v, None

    adapted = {"fn": one_head}
    exec(described(one_head).adapter().replace("# fn is", "# "), adapted)
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4, 5, 3)).astype(np.float32)
    calls.clear()
    right = adapted["adapted"](q, k, v)
    assert len(calls) == 8
    calls.clear()
    out = jax.jit(adapted["adapted"])(q, k, v)
    assert len(calls) == 1
    np.testing.assert_allclose(out, right, atol=1e-6)


def test_one_length_without_an_answer_does_not_end_the_description(monkeypatch, tmp_path):
    """One query is asked as well, if no other call fits a formula."""
    lines = "import numpy as np", "def attention(q, k, v):", "    while q.shape[-2] == 1:", "        pass"
    last = "    return 2 * np.tanh(q @ k.swapaxes(-1, -2)) @ v\n"
    (tmp_path / "one_query.py").write_text("\n".join((*lines, last)), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(describing, "CALL_SECONDS", 0.5)
    with pytest.raises(Refusal, match="no known formula gives its result without options"):
        describing.describe("one_query:attention")
