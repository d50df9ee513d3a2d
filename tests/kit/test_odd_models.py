"""`check_model` of sound models unlike most: what they give and take, how they count, how they round."""

import functools

import pytest

from attendax.conformance import check_model
from test_sees import EMBEDDING, SAID

torch = pytest.importorskip("torch")
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)


class Net(torch.nn.Module):
    """Two layers, of which `give` makes what it returns; with an autocast where a dtype is given."""

    def __init__(self, give=lambda x: x, longest=160, cast=None):
        super().__init__()
        torch.manual_seed(0)
        self.place, self.embed = torch.nn.Embedding(longest, 16), torch.nn.Embedding(50, 16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 48) for _ in range(2))
        self.norm, self.give, self.cast = torch.nn.LayerNorm(16), give, cast

    def forward(self, tokens, mask=None, positions=None):
        with torch.autocast("cpu", dtype=self.cast, enabled=self.cast is not None):
            places = torch.arange(tokens.shape[1])[None] if positions is None else positions
            x = self.embed(tokens) + self.place(places)
            seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()[None]
            seen = seen if mask is None else seen & mask.bool()[:, None]
            for layer in self.layers:
                query, key, value = layer(self.norm(x)).chunk(3, -1)
                weights = (query @ key.transpose(1, 2) / 4).masked_fill(~seen, -1e30).softmax(-1)
                x = x + weights @ value
            return self.give(self.norm(x))


class Named:
    def __init__(self, logits):
        self.hidden, self.logits = logits[..., :2], logits


GIVES = {
    "a dict": lambda x: {"loss": x.mean(), "logits": x},
    "other names": lambda x: {"loss": x.mean(), "out": x},
    "an object": Named,
    "a loss first": lambda x: (x.mean(), x),
}


def accused(model, **said):
    report = check_model(model, **SAID | {"causal": True, "positions": "absolute"} | said)
    assert report.counts().get("ok")
    return [outcome.told() for outcome in report.failures]


@pytest.mark.parametrize("give", GIVES)
def test_results_by_name_or_beside_others(give):
    assert not accused(Net(GIVES[give]), only=["future", "ways: training", "gradient: of one row"])


@pytest.mark.parametrize("longest", [1, 8, 12])
def test_a_model_of_few_tokens_is_asked_of_no_more(longest):
    assert not accused(Net(longest=longest), longest=longest)


def test_what_an_autocast_rounds_is_not_held_against_float64():
    """Results are float32, after a norm; parts are bfloat16."""
    model = Net(cast=torch.bfloat16)
    assert not accused(model, only=["ways", "past"])
    report = check_model(model, **SAID | {"causal": True, "positions": "absolute", "only": ["ways: float64"]})
    assert {o.finding.message for o in report.cases} == {
        "it cannot be told: parts are computed in bfloat16, which may round by as much"
    }


def test_a_fault_is_found_beside_an_autocast():
    report = check_model(Net(cast=torch.bfloat16), **SAID | {"causal": False, "positions": "absolute"})
    assert report.causes[0].name.startswith("past: not every token matters")


def test_parts_of_jax_are_told_by_their_dtypes():
    import jax.numpy as jnp

    def model(tokens, mask=None):
        x = jnp.asarray(EMBEDDING)[tokens]
        blurred = (x.cumsum(1) * (1 + tokens.shape[1] % 2 / 500)).astype(jnp.bfloat16)
        return blurred.astype(jnp.float32) / 3

    report = check_model(model, causal=True, arrays="jax", only=["future: 6 of"], **SAID)
    assert [o.finding.message.partition(":")[0] for o in report.cases] == ["it cannot be told"]


def test_a_model_that_knows_one_dtype_is_not_asked_in_float64():
    class Single(Net):
        def forward(self, tokens, mask=None):
            return super().forward(tokens, mask) @ torch.eye(16, dtype=torch.float32)

    report = check_model(Single(), **SAID | {"causal": True, "only": ["ways: float64"]})
    assert not report.failures
    assert all(o.finding.message.startswith("it cannot be run in float64: RuntimeError") for o in report.cases)


@functools.cache
def of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "T5EncoderModel":
        sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=50)
        return transformers.T5EncoderModel(transformers.T5Config(**sizes))
    if kind == "XLNetModel":
        return transformers.XLNetModel(
            transformers.XLNetConfig(vocab_size=50, d_model=32, n_layer=2, n_head=4, d_inner=64)
        )
    if kind == "MambaForCausalLM":
        return transformers.MambaForCausalLM(
            transformers.MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2)
        )
    family = kind.removesuffix("Model").removesuffix("ForMaskedLM")
    return getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**SIZES))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("RobertaForMaskedLM", {"causal": None, "only": ["positions", "padding", "future", "past"]}),
        ("T5EncoderModel", {"causal": False, "positions": "relative", "only": ["gradient", "ways: training"]}),
        ("XLNetModel", {"causal": False, "positions": "relative", "only": ["past", "padding, right"]}),
        ("MambaForCausalLM", {"only": ["cache: one at a time", "cache: a prefix"]}),
    ],
)
def test_models_of_transformers_with_ways_of_their_own(kind, said):
    """Places after the padding token, an embedding under two names, no longest text, a cache under another name."""
    model = of_transformers(kind)
    report = check_model(model, seed=1, **{"positions": "absolute", "causal": True} | said)
    assert report.counts().get("ok")
    assert not report.failures, [outcome.told() for outcome in report.failures]
