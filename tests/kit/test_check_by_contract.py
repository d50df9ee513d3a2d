"""`attendax check` describes a function first, calls it in its own way, and judges it by its own conventions."""

import json

import numpy as np
import pytest

from attendax import cli
from attendax.conformance import Implementation, Verdict, check
from attendax.conformance.cases import forward
from attendax.conformance.cases.how import How
from attendax.conformance.contract import describing, docstrings, pinning
from attendax.conformance.contract.understanding import IF_MEANT, Settled, Understood
from attendax.conformance.judge.trial import Trial
from attendax.conformance.report import Report
from attendax.exits import Refusal
from places import KIT

READINGS = json.loads((KIT / "contract" / "readings.json").read_text("utf-8"))
FORWARD = {"level": "forward", "seed": 7, "budget": 0, "only": ["plain", "L4", "scale"]}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder, as that of a user."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, name, *more):
    """The exit status, and all that is printed."""
    given = ("--level", "forward", "--seed", "7", "--budget", "0", "--only", "plain", "L4")
    status = cli.main(["check", f"theirs:{name}", *given, *more])
    return status, " ".join("".join(capsys.readouterr()).split())


def test_a_right_function_needs_no_flag(here, capsys):
    status, said = run(capsys, "right")
    assert status == 0
    assert "arrays query, key, value as (B, T, N, D)" in said
    assert "causal causal is aligned to the end of the keys (FlashAttention 2.1)" in said
    assert said.startswith("OK ")
    assert "differ by convention" in said


def test_a_defect_is_one_cause_in_the_words_of_the_table(here, capsys):
    status, said = run(capsys, "ahead")
    assert status == 1
    words = "causal is aligned to the end of the keys, and one key ahead is seen (j <= i + S - T + 1)"
    assert f"1. wrong numbers: {words}" in said
    assert "unsettled" not in said
    assert "2. " not in said


def test_what_is_unusual_is_confirmed(here, capsys):
    status, said = run(capsys, "unscaled")
    assert status == 1
    assert said.startswith("INCOMPLETE ")
    assert IF_MEANT.format("scores are not scaled", "scale", "1") in said
    assert run(capsys, "unscaled", "--expect", "scale=1")[0] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--expect", "skale=1"), "--expect: 'skale' is not an axis; allowed: causal, offset"),
        (("--expect", "scale"), "--expect got 'scale', expected axis=value, with an axis of causal, "),
        (("--expect", "causal=middle"), "--expect: 'middle' is not a value of causal; allowed: aligned to the start, "),
        (("--ignore", "skale"), "--ignore: 'skale' is not a parameter; allowed: q, k, v"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error(here, capsys, given, said):
    status, printed = run(capsys, "unscaled", *given)
    assert (status, said in printed) == (2, True)


def test_expect_pins_a_value(here, capsys):
    assert run(capsys, "right", "--expect", "causal=end")[0] == 0
    status, said = run(capsys, "right", "--expect", "causal=start")
    assert status == 1
    assert "causal is 'aligned to the end', and 'aligned to the start' is expected" in said


def test_what_is_not_compared_with_a_contract_file_is_told(here):
    (here / "c.toml").write_text('[means]\nscale = "1"\n', "utf-8")
    report = Understood(None, None).told(Report("f", "", "", ()), Settled.by({"scale": "1"}, (), "c.toml"))
    assert [x.partition("so it was ")[2] for x in report.unsettled] == ["not compared with c.toml, scale=1"]


def test_a_parameter_that_is_not_understood_is_no_pass(here, capsys):
    status, said = run(capsys, "slopes")
    assert (status, "unsettled: slope is not understood: its name is not known; --ignore slope" in said) == (1, True)
    assert run(capsys, "slopes", "--ignore", "slope")[0] == 0
    status, said = run(capsys, "blocks")
    assert (status, "block_size: changes nothing eps: changes nothing" in said) == (0, True)


def test_no_verdict_before_a_form_is_found(here, capsys):
    status, said = run(capsys, "squared")
    assert status == 1
    assert "No case was judged" in said
    assert "theirs:squared: no known formula gives its result without options" in said
    assert "nearest: query, key, value as (B, T, N, D)" in said


def test_results_of_several_and_methods(here, capsys):
    """(out, None, None) was a crash of the adapter; ``self`` is given a stand-in."""
    status, said = run(capsys, "merged")
    assert (status, "needs_weights: gives more results" in said) == (0, True)
    assert run(capsys, "Layer.attend")[0] == 0


def test_calls_that_differ_give_nothing_or_do_not_return(here, capsys, monkeypatch):
    status, said = run(capsys, "drops")
    assert (status, "two equal calls give different results" in said) == (2, True)
    status, said = run(capsys, "nothing")
    assert (status, "theirs:nothing: it gives NoneType, expected an array" in said) == (2, True)
    monkeypatch.setattr(describing, "CALL_SECONDS", 0.5)
    status, said = run(capsys, "waits")
    assert (status, "a call with 3 small arrays: no answer in 0.5 seconds" in said) == (2, True)


def test_cases_that_are_right_by_a_convention_refute_a_reason(here, capsys):
    """A row without keys that falls onto hidden ones was told as keys behind the last whole block."""
    given = "--level", "forward", "--seed", "1", "--budget", "0", "--only", "mask"
    status = cli.main(["check", "theirs:causal_by_a_number", *given])
    said = " ".join("".join(capsys.readouterr()).split())
    assert (status, "differ by convention" in said) == (0, True)  # its name says causal
    assert "block" not in said


def test_a_script_calls_the_function_in_its_own_way(here, capsys):
    assert cli.main(["check", "theirs:ahead", "--reproduce", "causal", "--seed", "7"]) == 1
    assert "def adapted(query, key, value, *, is_causal=False):" in capsys.readouterr().out


def test_ignore_is_of_a_function_that_is_described():
    with pytest.raises(ValueError, match="ignore is of a Python function"):
        check("exec:true", ignore=["scale"], **FORWARD)


def test_a_contract_file_says_how_a_broken_function_is_called(here, capsys):
    """No formula gives its results, so nothing but the file says in which layout they are wrong."""
    text = '[called]\nlayout = "BTND"\nlacks = ["grouped heads"]\n\n[keywords]\ncausal = "is_causal"\n'
    (here / "broken.toml").write_text(text + '\n[means]\ncausal = "aligned to the end"\nempty = "NaN"\n', "utf-8")
    status, said = run(capsys, "shifted", "--contract", "broken.toml", "--json", "report.json")
    assert (status, "How it is called (as its contract file says)" in said) == (1, True)
    report = json.loads((here / "report.json").read_text("utf-8"))
    assert report["counts"].keys() == {"wrong", "NaN", "not offered"}, report["counts"]
    assert run(capsys, "shifted")[1].count("No case was judged") == 1


def test_a_function_carries_its_gradients():
    given = {"only": ["gradient: plain"], "seed": 7, "budget": 0}
    assert check("theirs:by_hand", **given).counts() == {"ok": 1}
    assert check("theirs:wrong", **given).counts() == {"wrong": 1}


def test_a_contract_file_pins_it(here, capsys):
    assert cli.main(["describe", "theirs:right", "--save", "right.toml"]) == 0
    capsys.readouterr()
    assert run(capsys, "right", "--contract", "right.toml")[0] == 0
    status, said = run(capsys, "ahead", "--contract", "right.toml")
    assert status == 1
    assert "causal is 'aligned to the end, and one key ahead', and 'aligned to the end' in right.toml" in said
    (here / "short.toml").write_text('[called]\nlayout = "BTND"\n', "utf-8")  # what is left out is the law's
    status, said = run(capsys, "right", "--contract", "short.toml")
    assert (status, "causal is 'aligned to the end', and 'as the law has it' in short.toml" in said) == (1, True)
    (here / "unscaled.toml").write_text('[means]\nscale = "1"\n', "utf-8")
    assert run(capsys, "unscaled", "--contract", "unscaled.toml")[0] == 0


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[called]\nlayot = "BTND"', "line 2: 'layot' is not a key of [called]; allowed: arrays, layout"),
        ("[caled]", "line 1: 'caled' is not a table; allowed: called, keywords"),
        ("called = 1", "line 1: called is a table, [called]"),
        ('[keywords]\nm = "mast: BS"', "line 2: 'mast' is not an option; allowed: bias"),
        ('[means]\ncausal = "at the end"', "line 2: 'at the end' is not a value of causal; allowed: aligned to the"),
        ('[means]\nsofcap = "x"', "line 2: 'sofcap' is not an axis; allowed: causal"),
        ("[means", "Expected ']'"),
    ],
)
def test_a_contract_file_that_makes_no_sense(tmp_path, text, said):
    (tmp_path / "c.toml").write_text(text, "utf-8")
    with pytest.raises(Refusal) as refused:
        pinning.read(str(tmp_path / "c.toml"))
    assert said in str(refused.value)
    with pytest.raises(Refusal, match="No such file"):
        Settled.by({}, (), str(tmp_path / "none.toml"))


def test_in_python():
    report = check("contract.in_numpy:btnd", **FORWARD)
    assert report.ok
    assert "  arrays    query, key, value as (B, T, N, D)" in report.called
    assert check("contract.in_numpy:flat_noroot", **FORWARD).unsettled
    assert check("contract.in_numpy:flat_noroot", expect={"scale": "1/D"}, **FORWARD).ok
    with pytest.raises(TypeError, match="check: arrays left: check detects the framework"):
        check("contract.in_numpy:btnd", arrays="numpy", **FORWARD)


@pytest.mark.parametrize("name", ["flax_unscaled", "jaxnn"])
def test_dropout_and_windows_are_judged_by_its_conventions(name):
    """Weights that are dropped were held against scaled ones, and -1 in a window was taken for no limit."""
    report = check(f"contract.in_jax:{name}", level="forward", seed=7, budget=0, only=["dropout", "window"])
    assert not report.failures, str(report)
    assert report.judged


@pytest.mark.parametrize(
    ("docstring", "hides"),
    [
        ("mask: (B, S), True means attend, False means ignore", False), ("mask (B, 1, 1, S), True = hidden", True),
        ("mask: 1 for real tokens, 0 for padding", False), ("mask: bool, True on padded pixels.", True),
        ("mask: array, 0 where attention is not allowed", False), ("mask: 1 for frames that are not padding", False),
        ("mask: (B, S)\n    True: the key is excluded", True), ("mask: a 1-D mask of padding", None),
        ("causal: if True, later keys are masked\nmask: (T, S)", None), ("a mask, True = seen or hidden", None),
        ("key_mask: True = hidden", None), ("", None),
        ("mask: (T, S)\nis_causal: True hides later keys with a mask", None), ("mask: 1 where padded", True),
        ("mask: 0 where seen; -inf where hidden", None), ("bool mask True = allowed.", False),
        ("`mask` (Tensor): True is kept, or added: 0 where it is visible", False),
        ("mask is (B, S),\nTrue for real tokens, padding is not attended to.", False),
        ("scale\n    The scale.\nmask\n    A value of True\n    takes part.\ndropout\n    True drops.", False),
    ],
)  # fmt: skip
def test_what_a_docstring_says_of_a_mask(docstring, hides):
    assert docstrings.says_hides(docstring, "mask") is hides


@pytest.mark.parametrize(
    ("docstring", "reach"),
    [
        ("Each token sees itself and the `window - 1` tokens before it.", "w - 1"),
        ("At most `window` tokens are seen, itself included.", "w - 1"),
        ("itself and the `window` steps on either side", "w"), ("the window tokens before it", "w"),
        ("with window=W, itself and the W - 1 tokens before", "w - 1"),
        ("window // 2 tokens on each side", "w // 2"), ("Sliding window attention.", ""), ("", ""),
        ("window_size (left, right), -1 means unlimited", ""), ("i - window ... i + window", ""),
    ],
)  # fmt: skip
def test_what_a_docstring_says_of_a_window(docstring, reach):
    assert docstrings.says_reach(docstring, "window") == reach


@pytest.mark.parametrize(
    ("axis", "value", "docstring"),
    [
        ("scale", "1", "Depth scaling of the query is folded into the initializer."),
        ("scale", "1", "q: queries, already multiplied by depth ** -0.5."),
        ("scale", "1", "The scores are not divided by sqrt(d_kv)."),
        ("joins", "mask in place of causal", "If no mask is specified, a causal mask is used."),
        ("joins", "mask in place of causal", "A mask replaces causal."),
    ],
)
def test_what_a_docstring_confirms(axis, value, docstring):
    assert docstrings.stated(axis, value, f"attention\n{docstring}", ())
    assert not docstrings.stated(axis, value, "attention\nScaled attention with a causal mask.", ())


def test_what_comments_say_counts_before_the_code_alone():
    source = """
# Attention.
@jax.jit
def attend(
    q, k, v,
    mask=None,  # (B, S), True = pad
):
    'Attention.'
    # lengths: True = seen
    s = q @ k.mT  # scores: True
    return s
"""
    said = docstrings.comments(source)
    assert said.split("\n") == ["Attention.", "", "mask: (B, S), True = pad", "lengths: True = seen"]
    assert docstrings.says_hides(said, "mask")


def test_a_docstring_that_says_the_contrary_can_be_confirmed():
    assert check("contract.more_numpy:padded_kept", **FORWARD).unsettled
    assert check("contract.more_numpy:padded_kept", expect={"mask": "True attends"}, **FORWARD).ok


@pytest.mark.parametrize("counts", ["mask", "causal"])
def test_a_mask_or_causal_that_counts_alone(counts):
    """Beside causal to the end of the keys, which the judge writes as a mask."""

    def attend(query, key, value, mask=None, is_causal=False):
        T, S = query.shape[-2], key.shape[-2]
        if is_causal and (mask is None or counts == "causal"):
            mask = np.tri(T, S, S - T, dtype=bool)
        s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        w = np.exp(s - s.max(-1, keepdims=True)) * (True if mask is None else mask)
        total = w.sum(-1, keepdims=True)
        return w @ value / np.where(total == 0, 1, total)

    report = check(attend, in_process=True, level="forward", seed=7, budget=0, only=["causal"])
    assert not report.failures


def test_a_result_that_is_held_is_judged_by_the_conventions():
    """Some queries have no key and get NaN."""
    report = check("contract.more_numpy:alibi_last", seed=7, budget=0, only=["is held"], sizes={"T": 7, "S": 5})
    assert report.ok
    assert {outcome.verdict for outcome in report.cases} >= {Verdict.CONVENTION}


WORDS = {  # of the first cause, or of what is unsettled
    "ahead": "one key ahead", "axis": "softmax runs over the queries", "turned": "swapped", "tiled": "tiled",
    "tile": "tiled", "squared": "scale", "noroot": "1/D", "unscaled": "not scaled",
    "fill": "lowered by 5", "long": "too long", "short": "too short", "first": "mask of the first", "half": "bias",
    "softcap_order": "softcap", "less": "one key less", "zero": "masked scores are 0", "bias_minus": "subtracted",
    "bias_scaled": "scale is also applied to the bias", "scale_by_model": "1/√(N·D)", "strict": "own key",
    "no_max": "lse",
    "hides_queries": "swapped", "mixed_keys": "keys are split into heads by a reshape", "heads_joined": "joined by",
    "window_past": "a window hides", "pico_strict": "own key",
    "powers_large": "does not subtract", "tril_after": "zeros after the softmax", "chunks_padded": "keys of zeros",
    "documents_earlier": "earlier segments", "drops_unscaled": "dropout does not", "cached_last": "the last keys",
    "values_exchanged": "its key is used as the value", "keys_alone": "keys are in the place of queries",
    "heads_mixed": "by a reshape without a transpose", "diagonal_moved": "the wrong way",
    "drops_by_rate": "by the rate", "halves_inside": "half precision",
    "tokens_hidden": "mask is ignored", "groups_moved": "by the place in a group",
    "columns_behind": "all behind the queries seen", "tokens_first": "tokens, batches and heads are mixed",
    "tril_weights": "applied after the softmax", "right_side_short": "one key less to the right",
    "padding_alone": "hide padding", "repeats_tiled": "tiled", "keys_reshaped": "instead of transposed",
    "scaled_twice": "1/D", "small": "-2·bias", "inverted_twice": "mask", "window": "counts one key less to the left",
    "weights_scaled": "1/√(N·D)", "texts_heads": "by a reshape without a transpose",
    "queries_padded": "hide queries", "times_tril": "masked scores are 0", "caps_after": "caps after the mask",
    "past_uncounted": "does not count the keys of earlier calls", "one_head_axis": "softmax runs over the queries",
    "layer_joined": "by a reshape without a transpose",
    "layer_mixed": "by a reshape without a transpose",
    "polarity": "by its docstring it hides one", "padded_kept": "by its docstring it hides one",
    "sdpa_past": "does not count the keys of earlier calls",
    "pico_wide": "with C the width of x", "causal_anyway": "even if causal is False", "rows_of_length": "hide queries",
    "commented_kept": "by its comment it hides one", "padding_repeated": "repeated in the wrong order",
    "mask_repeated": "repeated in the wrong order", "eights_dropped": "behind the last whole block",
    "groups_scaled": "the result is wrong",
}  # fmt: skip
RIGHT = "window_wide", "qkvpacked_swapped"  # another convention
OPEN = {
    "mask_of_clip": "hides a key, and by that name it shows one",
    "mystery": "slope",
    "zamba": "the scale is √2/√D",
    "rescaled": "the scale is 1.87385",
    "dilated": "dilation is not understood: it changes results beside window",
    "compared": "causal without being asked",
    "t5": "not scaled",
    "keras": "scaled",
    "drops_scores": "before the softmax",
    "drops_results": "of the result",
    "drops_unasked": "in every call",
    "newest": "newest tokens of a cache",
    "drops_always": "in inference",
    "sides_literal": "only -1 on both sides",
    "farther_more": "wrong sign",
    "once_scaled": "1/√(√D)",
    "packed_lists": "q_seqlen is not understood",
    "tiles_lse_of_max": "second result is not understood",
    "by_mode": "window is not understood: it changes nothing, unless kind makes it count",
    "scaled_in_place": "it writes to the array",
    "in_windows": "bias_table is not understood",
    "global_tokens": "attention_mask is not understood",
    "kept_mask": "a call changes what later calls give",
    "local_by_kind": "window_size is not understood: it changes nothing, unless",
    "paddle": "a mask of 0 and 1 hides",
    "window_kept": "sliding_window is not understood",
    "causal_by_default": "window is not understood: it changes nothing, unless mode makes it count",
    "any_rank": "not scaled",
    "causal_or_mask": "a mask is left out if causal is given",
    "biased_instead": "causal is left out if a mask or a bias is given",
    "slopes_scaled": "slopes is not understood: ALiBi",
    "huge_drops": "atten_mask is not understood: no known meaning gives its effect",
}
QUICK = ("in_numpy:llama_tile", "in_torch:flash", "in_torch:annotated_turned", "in_numpy:onehead_turned")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.hours]) for name in READINGS]
)
def test_a_function_as_people_write_it(name):
    """A right one passes without a flag; of a wrong one the first cause, or what is unsettled, says what is off."""
    module, _, fn = name.partition(":")
    if module.endswith("torch"):
        pytest.importorskip("torch")
    base, _, off = fn.rpartition("_")
    wrong = base if fn not in (*RIGHT, *OPEN) and off and f"{module}:{base}" in READINGS else ""
    longer = next((key for key in WORDS if "_" in key and fn.endswith(key)), off)
    report = check(f"contract.{name}", level="forward", seed=7)
    said = [cause.name for cause in report.causes[:1]] + [*report.defects, *report.unsettled]
    if wrong or longer != off:
        assert not report.ok
        assert any(WORDS[longer] in words for words in said), said
        assert len(report.causes) < 2, [cause.name for cause in report.causes]
    elif fn in OPEN:
        assert not report.failures
        assert any(OPEN[fn] in words for words in said), said
    else:
        assert not report.failures, [cause.name for cause in report.causes]
        assert not report.unsettled + report.defects


def test_gradients_of_keys_that_are_the_values_are_judged():
    torch = pytest.importorskip("torch")

    def detached(query, memory):
        return torch.softmax(query @ memory.mT * query.shape[-1] ** -0.5, -1).detach() @ memory

    given = {"only": ["gradient: plain"], "seed": 7}
    assert check("contract.more_torch:memory", **given).ok
    report = check(detached, **given)
    assert [x.name for x in report.causes][:1] == ["grad query is all zeros"]


def test_a_mask_in_place_of_causal_counts_for_what_rounding_allows():
    """Masked calls were held to the error of causal calls, which see fewer keys: a right function was accused."""
    case = next(x for x in forward.CASES if "mask" in x.options and "is_causal" not in x.options)
    wanted = {"out": np.ones(1)}
    found = [
        Trial(Implementation(len, "", arrays="numpy", means=means), case, How(seed=3)).tolerances(wanted)
        for means in ({}, {"pairs": "causal", "joins": "mask in place of causal"})
    ]
    assert found[0] == found[1]


def test_a_mask_that_is_kept_from_an_earlier_call_is_found_in_a_new_process():
    pytest.importorskip("torch")
    report = check("contract.more_torch:window_kept", only=["plain"], level="forward", seed=0)
    assert any("a call changes what later calls give" in words for words in report.defects), report.defects


def test_nan_gradients_beside_a_query_without_any_key_are_its_convention():
    """A softmax of -inf gives NaN, and so do its gradients; NaN in the gradient of another query is a fault."""
    torch = pytest.importorskip("torch")

    def attend(q, k, v, causal=False):
        s = q @ k.mT * q.shape[-1] ** -0.5
        T, S = s.shape[-2:]
        if causal:
            s = torch.where(torch.ones(T, S, dtype=torch.bool).tril(S - T), s, -torch.inf)
        return s.softmax(-1) @ v

    def spoiled(q, k, v, causal=False):
        q = q + 0
        if q.requires_grad and q.shape[-2] > k.shape[-2]:
            last = torch.arange(q.shape[-2])[:, None] == q.shape[-2] - 1  # which sees all keys
            q.register_hook(lambda gradient: torch.where(last, torch.nan, gradient))
        return attend(q, k, v, causal)

    given = {"only": ["gradient: causal, more queries"], "seed": 7}
    assert not check(attend, **given).failures
    assert check(spoiled, **given).failures


@pytest.mark.parametrize("adds", [True, False])
def test_a_number_that_is_added_or_written_where_masked_gives_the_mean_and_a_gradient_of_its_own(adds):
    """The lowest number swallows the scores of a row without keys; added, it lets their gradients through."""
    torch = pytest.importorskip("torch")
    lowest = torch.finfo(torch.float32).min

    def attend(q, k, v, mask=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            s = s + torch.where(mask, 0.0, lowest) if adds else s.masked_fill(~mask, lowest)
        return s.softmax(-1) @ v

    def halved(q, k, v, mask=None):
        return attend(q / 2 + q.detach() / 2, k, v, mask)

    given = {"only": ["gradient: empty row by a mask"], "seed": 7}
    assert not check(attend, **given).failures
    assert check(halved, **given).failures


def test_values_that_are_reshaped_to_the_width_of_keys_are_not_offered():
    """T5 gives (B, T, N·D), which says nothing of values of another width."""

    def attend(q, k, v):
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        e = np.exp(s - s.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(len(q), -1, q.shape[1] * q.shape[3])

    report = check(attend, only=["plain", "values wider"], level="forward", seed=7, budget=0, sizes={"T": 4})
    assert not report.failures
    assert "gives the shape" in str(report)


def test_a_write_to_an_argument_is_one_reason():
    """Under autograd the write raises, and elsewhere the array is another one."""
    torch = pytest.importorskip("torch")

    def attend(q, k, v):
        q *= q.shape[-1] ** -0.5
        return torch.softmax(q @ k.mT, -1) @ v

    report = check(attend, only=["plain", "gradient: plain"], seed=7, budget=0)
    assert [cause.name for cause in report.causes] == ["writes to query"]


@pytest.mark.parametrize("off", [1.0, 1.001])
def test_a_measured_scale_hides_no_other_error(off):
    """A scale of which seven digits are known allows what the eighth may change, and no more."""

    def attend(query, key, value):
        scale = 1.8738537 / query.shape[-1] ** 0.5 * (off if query.shape[-2] == 1 else 1)
        scores = query @ key.swapaxes(-1, -2) * scale
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ value

    assert bool(check(attend, level="forward", seed=1, budget=0).failures) == (off != 1)
