"""`check_model` of models whose results are bfloat16 or float16: what such a dtype shows, and what it cannot show."""

import ml_dtypes
import numpy as np
import pytest

from attendax.conformance import check_model
from test_sees import EMBEDDING, SAID, attention


def narrow_model(rule, dtype="bfloat16", layers=1):
    """All parts rounded to a narrow dtype, which is that of its results."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def model(tokens, positions=None):
        x = EMBEDDING[tokens]
        for _ in range(layers):
            x = attention(x, rule).astype(kind).astype(np.float32)
        return x.astype(kind)

    return model


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("rule", "causal"), [("j <= i", True), ("j >= 0", False)])
def test_a_sound_model_of_a_narrow_dtype_is_not_accused(rule, causal, dtype):
    report = check_model(narrow_model(rule, dtype, 3), causal=causal, **SAID)
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert report.dtype == dtype


@pytest.mark.parametrize(
    ("rule", "causal", "words"),
    [
        ("(j <= i) & (j != i - 3)", True, "past: not all that comes before matters"),
        ("j <= i", False, "past: not every token matters"),
        ("j >= 0", True, "future: every position sees all that comes after"),
        ("j >= i", True, "future: every position sees all that comes after"),
        ("j <= i + 1", True, "future: positions see 1 ahead"),
    ],
)
def test_a_broken_model_of_a_narrow_dtype_is_found(rule, causal, words):
    report = check_model(narrow_model(rule), causal=causal, only=["future", "past"], **SAID)
    assert report.causes[0].name == words


def test_rows_that_are_mixed_in_a_narrow_dtype_are_no_other_mask():
    """What a row sees of itself is the same in each batch, and rounding hides some of it in one or the other."""

    def mixed(tokens):
        x = EMBEDDING[tokens]
        x = attention(x, "j <= i") + np.float32(0.3) * x[::-1]
        return x.astype(ml_dtypes.bfloat16)

    report = check_model(mixed, causal=True, only=["batch"], **SAID)
    assert report.causes[0].name.startswith("batch: a row depends on")
    assert "a norm over the batch, a reshape that mixes" in report.causes[0].remedy


def test_positions_that_are_ignored_are_found_in_a_narrow_dtype():
    report = check_model(narrow_model("j >= 0"), causal=False, **SAID | {"positions": "absolute"})
    assert [cause.name for cause in report.causes] == [
        "positions: positions in another order change nothing: they are ignored"
    ]
    untold = [o.finding.message for o in report.cases if o.case.name == "positions: order"]
    assert untold[0].startswith("no token moves another position by more than")


@pytest.mark.parametrize("encoder", [True, False])
def test_a_module_in_bfloat16_is_judged_in_float64_where_its_results_show_nothing(encoder):
    """At the sizes of weights at which models begin, a token moves others by less than a bit of bfloat16."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)
    kind, config = ("BertModel", "BertConfig") if encoder else ("LlamaForCausalLM", "LlamaConfig")
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(torch.bfloat16)
    said = {"causal": not encoder, "positions": "absolute" if encoder else "rotary"}
    report = check_model(model, only=["future", "past", "positions: order"], seed=1, **said)
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert not [o for o in report.cases if "cannot be told" in o.finding.message]
    assert report.dtype == "bfloat16"
    if encoder:
        blind = check_model(model, causal=True, only=["future", "past"], seed=1)
        assert blind.causes[0].name.startswith("future: every position sees all")


def test_a_leak_that_shows_in_float64_alone_is_not_told_in_times_of_rounding():
    """A copy in float64 is held to the rounding of float32: a factor of it would be a factor of another dtype."""
    torch = pytest.importorskip("torch")

    class Leak(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.joint = torch.nn.Embedding(40, 32), torch.nn.Linear(32, 96)

        def forward(self, tokens):
            x = self.table(tokens)
            query, key, value = self.joint(x).chunk(3, -1)
            scores = query @ key.mT / 32**0.5
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return x + scores.masked_fill(ahead, -8.0).softmax(-1) @ value

    torch.manual_seed(2)
    report = check_model(Leak().bfloat16(), causal=True, vocabulary=40, only=["future"], seed=0, in_process=True)
    said = [outcome.finding.message for outcome in report.failures]
    told = [words for words in said if words.endswith(", in float64")]
    assert told
    assert not [words for words in told if "times what rounding" in words]
