"""`check_model` of models that see less than all before them: what is declared of them, and what they are told."""

import importlib.util
import inspect

import numpy as np
import pytest

from attendax import masks
from attendax.conformance import check_model
from attendax.conformance.models.blackbox import Sees, fitting, told

EMBEDDING, *KERNELS = (
    (np.random.default_rng(k).standard_normal(shape) * 0.5).astype(np.float32)
    for k, shape in enumerate([(50, 16), (16, 16), (16, 16), (16, 16)])
)
SAID = {"vocabulary": 50, "positions": "none", "seed": 1, "in_process": True}
CAUSAL = {
    "window:5": "(j <= i) & (j > i - 5)",
    "first:1+window:5": "(j <= i) & ((j > i - 5) | (j < 1))",
    "prefix:3": "(j <= i) | (j < 3)",
    "prefix:3+window:4": "(j < 3) | ((j <= i) & (j > i - 4))",
    "blocks:8": "(j <= i) & (i // 8 == j // 8)",
}
ENCODERS = {
    "window:4": "abs(i - j) < 4",
    "window:2,1": "(j >= i - 2) & (j <= i + 1)",
    "blocks:8": "i // 8 == j // 8",
    "blocks:4,8": "(j // 4 <= i // 4) & (j >= i // 4 * 4 - 8)",  # an encoder of streams
}


def attention(x, rule, past=None):
    """One layer by a rule on i and j; `past` is what is before x."""
    whole = x if past is None else np.concatenate([past, x], 1)
    i, j = np.arange(whole.shape[1])[whole.shape[1] - x.shape[1] :, None], np.arange(whole.shape[1])
    query, key, value = (given @ kernel for given, kernel in zip((x, whole, whole), KERNELS, strict=True))
    scores = np.where(eval(rule, {"i": i, "j": j, "abs": abs}), query @ key.swapaxes(1, 2) / 4, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return x + weights / weights.sum(-1, keepdims=True) @ value


def model_by(rule, layers=1):
    def model(tokens):
        x = EMBEDDING[tokens]
        for _ in range(layers):
            x = attention(x, rule)
        return x

    return model


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("words", CAUSAL)
def test_a_model_that_was_not_declared_so_is_told_the_declaration_and_keeps_it(words, layers):
    model = model_by(CAUSAL[words], layers)
    with pytest.raises(ValueError, match=r"sees exactly .* if that is not meant, it is what is wrong") as raised:
        check_model(model, causal=True, layers=layers, **SAID)
    assert f"give --sees {words} " in str(raised.value)
    report = check_model(model, sees=words, causal=True, layers=layers, **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert report.laws()["window"].judged


@pytest.mark.parametrize("words", ENCODERS)
def test_the_same_of_encoders(words):
    with pytest.raises(ValueError, match=f"give --sees {words} "):
        check_model(model_by(ENCODERS[words]), causal=False, **SAID)
    report = check_model(model_by(ENCODERS[words]), sees=words, causal=False, **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]


@pytest.mark.parametrize("declared", ["window:4", "window:6", "first:1+window:5", "prefix:5", "blocks:5"])
def test_a_wrong_declaration_is_a_fault_that_names_the_right_one(declared):
    report = check_model(model_by(CAUSAL["window:5"]), sees=declared, causal=True, **SAID)
    assert not report.ok
    assert "it sees the last 5 tokens: --sees window:5" in report.causes[0].remedy


def test_a_finding_names_the_defaults_that_it_rests_on():
    report = check_model(model_by(ENCODERS["blocks:8"].replace("8", "4")), sees="window:4", **SAID)
    first = report.causes[0].remedy
    assert "it sees its own block of 4: --sees blocks:4 --no-causal" in first
    assert "it was taken for causal, as window:4 is read without --no-causal" in first
    report = check_model(model_by(CAUSAL["window:5"], 2), sees="window:5", causal=True, **SAID)
    assert "it was taken for one layer of attention, as --layers is not given" in report.causes[0].remedy
    said = check_model(model_by("j >= 0"), causal=True, **SAID)
    assert not any("it was taken for" in cause.remedy for cause in said.causes)


def test_a_class_whose_name_says_causal_is_taken_so_and_the_finding_says_it():
    """BERT as it is, under the name of a decoder."""
    transformers = pytest.importorskip("transformers")

    class BertForCausalLM(transformers.BertModel):
        pass

    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    report = check_model(BertForCausalLM(transformers.BertConfig(**sizes, is_decoder=False)), only=["future"], seed=1)
    assert "it was taken for causal, as its name BertForCausalLM says" in report.causes[0].remedy


def masked_by_size(tokens):
    """Causal in a text alone; in a batch there is no mask."""
    return attention(EMBEDDING[tokens], "j <= i" if len(tokens) == 1 else "j >= 0")


def masked_by_content(tokens):
    """Causal if the batch has a token 0, which the model takes for padding."""
    return attention(EMBEDDING[tokens], "j <= i" if (tokens == 0).any() else "j >= 0")


def scaled_by_size(tokens):
    return EMBEDDING[tokens].cumsum(1) / len(tokens)


def mixed(tokens):
    x = EMBEDDING[tokens]
    return attention(x, "j <= i") - x.mean(0)


@pytest.mark.parametrize(
    ("model", "name", "usual"),
    [
        (masked_by_size, "in one batch a position sees all before it, in another all", "a mask that is left out"),
        (masked_by_content, "in one batch a position sees all, in another all before it", "a mask that is left out"),
        (scaled_by_size, "a row depends on the size of its batch", "the size of the batch in it"),
        (mixed, "a row depends on", "a norm over the batch, a reshape that mixes"),
    ],
)
def test_what_a_batch_changes_is_asked_in_that_batch(model, name, usual):
    report = check_model(model, causal=True, **SAID)
    assert report.causes[0].name.startswith("batch: a row depends on")
    assert name in report.causes[0].name
    assert usual in report.causes[0].remedy


@pytest.mark.parametrize(("rule", "causal", "law"), [("j <= i + 1", True, "future"), ("j <= i", False, "past")])
def test_what_cannot_be_meant_is_a_fault(rule, causal, law):
    """Beside a declared causal nothing ahead is excused; and an encoder that sees the past alone is none."""
    assert check_model(model_by(rule), causal=causal, **SAID).causes[0].name.startswith(law)


@pytest.mark.parametrize(("rule", "words"), [("i // 8 == j // 8", "up to 7 ahead"), ("j >= i", "all that comes after")])
def test_how_far_ahead_is_told_by_a_long_text(rule, words):
    """All of a text of 6 tokens is a block of 8."""
    report = check_model(model_by(rule), causal=True, only=["future: one text at a time"], **SAID)
    assert [cause.name.endswith(words) for cause in report.causes] == [True], report.causes


@pytest.mark.parametrize(("seen", "is_right"), [("j <= i", True), ("(j <= i) & (j > i - 20)", False)])
def test_what_fades_down_to_rounding_is_no_token_that_is_not_seen(seen, is_right):
    """By ALiBi of one head the weights 130 back are 1e-17; a window of 20 ends before they are that small."""

    def model(tokens):
        x = EMBEDDING[tokens]
        i, j = np.arange(x.shape[1])[:, None], np.arange(x.shape[1])
        query, key, value = (x @ kernel for kernel in KERNELS)
        bias = np.where(eval(seen, {"i": i, "j": j}), -0.3 * abs(i - j), -np.inf)
        weights = np.exp(query @ key.swapaxes(1, 2) / 4 + bias.astype(np.float32))
        return x + weights / weights.sum(-1, keepdims=True) @ value

    if is_right:
        assert check_model(model, causal=True, **SAID | {"positions": "relative"}).ok
        return
    with pytest.raises(ValueError, match="give --sees window:20 "):
        check_model(model, causal=True, **SAID | {"positions": "relative"})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"sees": "windows:5"}, "sees got 'windows:5', expected causal, all, window:W"),
        ({"sees": "window:0"}, "sees got 'window:0'"),
        ({"sees": "window"}, "sees got 'window'"),
        ({"sees": "all", "causal": True}, "leave one of them out"),
        ({"sees": "causal", "causal": False}, "leave one of them out"),
        ({"sees": "window:5", "window": 4}, "give one of them"),
        ({"sees": "blocks:4"}, "give --causal or --no-causal beside it"),
        ({"sees": "blocks:0,4"}, "sees got 'blocks:0,4'"),
        ({"cache": [len], "causal": True}, r"cache got len, expected functions \(init, step\)"),
    ],
)
def test_declarations_that_are_none_are_refused(said, words):
    with pytest.raises(ValueError, match=words):
        check_model(model_by("j <= i"), **SAID, **said)


@pytest.mark.parametrize(
    ("words", "mask"),
    [
        ("causal", masks.causal()),
        ("window:4", masks.window(3, 0)),
        ("window:3,0", masks.window(3, 0)),
        ("window:2,1", masks.window(2, 1)),
        ("prefix:3", masks.prefix(3)),
    ],
)
def test_words_are_those_of_masks(words, mask):
    seen = Sees(words, causal="2,1" not in words).pairs(9).T
    assert np.array_equal(seen, np.asarray(mask.to_dense(9, 9)))


def test_the_simplest_words_are_found_for_what_is_seen():
    for words in CAUSAL:
        assert fitting(Sees(words, True).pairs(40, 2), 2, True) == words
    assert fitting(np.tri(40, k=1, dtype=bool).T, 1, True) == ""
    assert told("prefix:3") == "all before it and the first 3, also those after it"


def cache_by(rule, keeps=lambda past: past):
    """Functions of a cache: all vectors so far, of which a step is given those that are kept."""

    def init(batch, room):
        return np.zeros((batch, 0, 16), np.float32)

    def step(tokens, cache):
        x = EMBEDDING[tokens]
        return attention(x, rule, keeps(cache)), np.concatenate([cache, x], 1)

    return init, step


pair = cache_by("j <= i")


@pytest.mark.parametrize(
    ("sees", "rule", "keeps", "words"),
    [
        ("window:4", "j <= i", lambda past: past, "a window, or a mask, is not passed on to the step"),
        ("causal", "j <= i", lambda past: past[:, :0], "tokens of earlier steps are overwritten, or hidden"),
        ("causal", "(j <= i) & (j > i - 3)", lambda past: past, "a position sees the last 3 tokens"),
        ("causal", "j >= 0", lambda past: past, "lets it see what comes after"),
    ],
)
def test_a_cache_that_sees_other_tokens_is_told_which(sees, rule, keeps, words):
    whole = model_by(CAUSAL["window:5"].replace("5", "4") if sees == "window:4" else "j <= i")
    report = check_model(whole, sees=sees, cache=cache_by(rule, keeps), **SAID)
    assert report.causes[0].name.startswith("cache")
    assert any(words in cause.remedy for cause in report.causes), [cause.remedy for cause in report.causes]


@pytest.mark.parametrize(("rule", "words"), [("j <= i", "all before it"), ("(j <= i) & (j > i - 6)", "the last 6")])
def test_windows_of_two_layers_that_cover_a_short_text(rule, words):
    """The cache holds tokens; what a step gives is that of all of them under the rule."""

    def step(tokens, past):
        known = np.concatenate([past, tokens], 1)
        return model_by(rule, 2)(known)[:, past.shape[1] :], known

    cache = (lambda batch, room: np.zeros((batch, 0), np.int32)), step
    whole = model_by(CAUSAL["window:5"], 2)
    report = check_model(whole, sees="window:5", layers=2, cache=cache, only=["one at a time"], **SAID)
    assert f"through the cache a position sees {words}" in report.causes[0].remedy


def test_sharp_attention_sees_all_that_comes_before():
    """Some weights are below rounding wherever another token draws all of a query's attention."""

    def model(tokens):
        x = 2 * EMBEDDING[tokens]
        i, j = np.indices((x.shape[1], x.shape[1]))
        scores = np.where(j <= i, (x @ KERNELS[0]) @ (x @ KERNELS[1]).swapaxes(1, 2), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return x + weights / weights.sum(-1, keepdims=True) @ (x @ KERNELS[2])

    report = check_model(model, causal=True, only=["past"], **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]


def test_the_beginning_of_a_text_is_that_text_alone():
    def model(tokens):
        return EMBEDDING[tokens].cumsum(1) / tokens.shape[1]

    report = check_model(model, causal=True, **SAID)
    assert [cause.name for cause in report.causes] == [
        "future: the first 6 tokens alone give other results than with 7 more behind them"
    ]
    assert check_model(model, causal=True, lacks=["beginnings"], **SAID).ok
    for words, rule, count in (
        ("prefix:3", CAUSAL["prefix:3"], 6),
        ("window:9", "(j <= i) & (j > i - 9)", 6),
        ("prefix:7", "(j <= i) | (j < 7)", 4),
    ):
        report = check_model(model_by(rule), sees=words, only=["future"], **SAID)
        assert report.ok
        assert report.counts()["ok"] == count


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (lambda mask: np.broadcast_to(mask[:1], mask.shape), "another row of the batch is given is used"),
        (lambda mask: mask | np.roll(mask, -1, 1), "is one off"),
    ],
)
def test_a_mask_of_padding_that_is_another(used, words):
    def model(tokens, mask=None):
        x = EMBEDDING[tokens]
        seen = np.tri(x.shape[1], dtype=bool) & (True if mask is None else used(mask.astype(bool))[:, None])
        return seen / np.maximum(seen.sum(-1, keepdims=True), 1) @ x

    report = check_model(model, causal=True, only=["padding, left: alone"], **SAID | {"claims": ["own positions"]})
    assert words in report.causes[0].remedy


def test_numbers_of_bfloat16_in_float32_are_rounded_as_such():
    """As by an autocast: what a text gives differs by a rounding of bfloat16 from what it gives beside padding."""
    import ml_dtypes

    def model(tokens, mask=None):
        x = EMBEDDING[tokens] * (1 if mask is None else mask[..., None])
        blurred = x.cumsum(1) * np.float32(1 + tokens.shape[1] % 2 / 500)
        return blurred.astype(ml_dtypes.bfloat16).astype(np.float32)

    report = check_model(model, causal=True, only=["padding, right", "future"], **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]


@pytest.mark.parametrize(("sees", "untold"), [(0.1, 0), (0.0003, 1), (0.0, 0)])
def test_what_moves_by_less_than_its_dtype_shows_is_not_told(sees, untold):
    """In bfloat16 each bit that moves is evidence; and if none moves anywhere, that is."""
    import ml_dtypes

    def model(tokens):
        x = EMBEDDING[tokens]
        x = x + np.float32(sees) * x.cumsum(1) / np.arange(1, 1 + x.shape[1], dtype=np.float32)[:, None]
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)

    report = check_model(model, causal=True, only=["past", "future"], **SAID)
    assert report.ok == bool(sees), [outcome.told() for outcome in report.failures]
    told = [o.finding.message for o in report.cases if "in bfloat16 it cannot be told" in o.finding.message]
    assert len(told) == untold, [outcome.told() for outcome in report.cases]


def test_a_mask_that_lets_all_be_seen_is_no_small_weight():
    def model(tokens, mask=None):
        x = EMBEDDING[tokens]
        seen = np.tri(x.shape[1], dtype=bool) | (False if mask is None else mask.astype(bool)[:, None])
        return (x + 1e-3 * (seen / seen.sum(-1, keepdims=True) @ x)).astype(np.float32)

    report = check_model(model, causal=True, only=["future"], **SAID)
    assert [cause.name for cause in report.causes] == [
        "future: every position sees all that comes after, once a mask is given"
    ]


def test_segments_of_another_row():
    def model(tokens, segment_ids=None):
        x = EMBEDDING[tokens]
        same = True if segment_ids is None else (segment_ids[:1, :, None] == segment_ids[:1, None])
        seen = np.tri(x.shape[1], dtype=bool) & same
        return seen / seen.sum(-1, keepdims=True) @ x

    report = check_model(model, causal=True, **SAID)
    assert [cause.name.partition(":")[0] for cause in report.causes] == ["packing"]
    assert "another row of the batch is given is used" in report.causes[0].remedy


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_what_is_given_is_not_written_to(arrays):
    torch = pytest.importorskip("torch") if arrays == "torch" else None
    table = torch.tensor(EMBEDDING) if torch else EMBEDDING

    def model(tokens, mask=None):
        if mask is not None:
            tokens[mask == 0] = 0
        x = table[tokens]
        return (x if mask is None else x * mask[..., None]).cumsum(1)

    report = check_model(model, causal=True, arrays=arrays, only=["ways: its inputs", "batch"], **SAID)
    assert [cause.name for cause in report.causes] == ["ways: it writes to its caller's inputs"]


@pytest.mark.parametrize("takes", [True, False])
def test_a_cache_that_counts_from_another_place_is_told_of_positions(takes):
    places = np.random.default_rng(9).standard_normal((64, 16)).astype(np.float32)

    def whole(tokens):
        return attention(EMBEDDING[tokens] + places[: tokens.shape[1]], "j <= i")

    def init(batch, room):
        return np.zeros((batch, 0, 16), np.float32)

    def with_positions(tokens, cache, positions=None):
        positions = np.arange(tokens.shape[1])[None] if positions is None else positions  # begins anew
        x = EMBEDDING[tokens] + places[positions]
        return attention(x, "j <= i", cache), np.concatenate([cache, x], 1)

    def without(tokens, cache):
        return with_positions(tokens, cache)

    step = with_positions if takes else without
    report = check_model(whole, causal=True, cache=(init, step), only=["cache"], **SAID | {"positions": "absolute"})
    words = "given 0, 1, 2, ... it is right" if takes else "positions, or a bias by them, begin anew"
    assert any(words in cause.remedy for cause in report.causes), [cause.remedy for cause in report.causes]


def test_a_cache_is_given_as_a_pair(tmp_path, monkeypatch):
    (tmp_path / "paired.py").write_text(inspect.getsource(inspect.getmodule(cache_by)))
    monkeypatch.syspath_prepend(tmp_path)
    for given in ("paired:pair", ["paired:pair"], (pair,), pair):
        report = check_model(model_by("j <= i"), causal=True, cache=given, only=["cache"], **SAID)
        assert report.ok, [outcome.told() for outcome in report.failures]
        assert report.counts()["ok"] == 6


@pytest.mark.skipif(importlib.util.find_spec("equinox") is None, reason="equinox is not installed")
@pytest.mark.parametrize("batch", [True, False])
def test_a_module_of_equinox_takes_a_text_or_a_batch(batch):
    import equinox
    import jax.numpy as jnp

    class Module(equinox.Module):
        table: object

        def __call__(self, tokens):
            rows, length = tokens.shape if batch else (1, *tokens.shape)
            found = jnp.cumsum(self.table[tokens].reshape(rows, length, -1), 1)
            return found if batch else found[0]

    report = check_model(Module(jnp.asarray(EMBEDDING)), causal=True, longest=13, only=["batch", "future"], **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]
