"""`check_model`: what it asks, what it refuses and what it says; of models of libraries, test_broken_models.py."""

import importlib
import importlib.util
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from attendax.conformance import Case, assert_model, check_model
from attendax.conformance.judge.verdicts import Finding, Verdict
from attendax.conformance.models.adapters import FAMILIES
from attendax.conformance.models.blackbox import Computation
from attendax.conformance.models.describing import described
from attendax.conformance.models.runner import script
from attendax.conformance.models.trial import Evidence, Found, Law
from libraries import matrix
from places import KIT, TESTS

TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def sees_all(tokens):
    return TABLE[tokens] + TABLE[tokens].mean(1, keepdims=True)


def sees_the_past(tokens, mask=None):
    return TABLE[tokens].cumsum(1)


def test_a_finding_says_where_how_large_and_why():
    report = check_model(sees_all, vocabulary=50, causal=True, only=["future"], seed=1, in_process=True)
    first = report.failures[0]
    assert first.case.law == "future"
    assert first.verdict.value == "leak"
    for words in ("changing the token at position", "moves position", "times the allowed rounding"):
        assert words in first.finding.message
    assert "usual cause: " in report.causes[0].remedy


def test_the_script_shows_it_without_attendax(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ntable = np.random.default_rng(0).standard_normal((50, 8))\n\n\n"
        "def model(tokens):\n    return table[tokens] + table[tokens].mean(1, keepdims=True)\n"
    )
    command = [sys.executable, "-m", "attendax", "check", "--model", "mine:model", "--vocabulary", "50", "--causal"]
    found = subprocess.run(
        [*command, "--only", "future: one", "--reproduce", "future: one"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    assert "attendax" not in found.stdout
    script = tmp_path / "shows.py"
    script.write_text(found.stdout)
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert shown.stderr.rstrip().endswith("AssertionError")


@pytest.mark.smoke
def test_the_report_is_that_of_the_kit():
    report = check_model(sees_all, vocabulary=50, causal=True, only=["future", "batch"], seed=1, in_process=True)
    again = matrix.tables.report_from(json.loads(report.to_json()))
    assert again.counts() == report.counts()
    assert list(report.laws()) == ["batch", "future"]
    assert "future" in report.to_markdown()


@pytest.mark.smoke
def test_assert_model():
    assert_model(sees_the_past, vocabulary=50, causal=True, seed=0, only=["future", "past"], in_process=True)
    with pytest.raises(AssertionError, match="future: every position sees all that comes after"):
        assert_model(sees_all, vocabulary=50, causal=True, seed=0, in_process=True)


@pytest.mark.smoke
def test_what_a_model_lacks_is_not_offered():
    report = check_model(sees_all, vocabulary=50, causal=True, lacks=["future"], seed=0, in_process=True)
    assert report.ok
    assert {o.finding.message for o in report.cases if o.case.law == "future"} == {"said to be lacking"}


def masked_by_torch(torch, tokens, mask):
    x = torch.as_tensor(TABLE)[tokens]
    return x.cumsum(1) if mask is None else x.masked_fill(~mask[..., None], 0).cumsum(1)


def test_what_a_table_of_torch_gives_tells_its_arrays():
    """It takes NumPy's tokens, too; it was accused of what torch says of a mask of NumPy."""
    torch = pytest.importorskip("torch")

    def model(tokens, mask=None):
        return masked_by_torch(torch, tokens, mask)

    report = check_model(model, vocabulary=50, causal=True, seed=0, in_process=True)
    assert report.ok, report
    assert report.arrays == "torch"


def test_what_raises_on_guessed_arrays_names_the_option():
    torch = pytest.importorskip("torch")

    def model(tokens, mask=None):  # NumPy's arrays without a mask
        return masked_by_torch(torch, tokens, mask).numpy()

    given = dict(vocabulary=50, causal=True, seed=0, in_process=True)
    report = check_model(model, **given)
    assert "--arrays torch" in report.causes[0].remedy
    assert "--arrays" not in check_model(model, arrays="numpy", **given).causes[0].remedy


@pytest.mark.smoke
def test_an_error_is_an_outcome():
    def short(tokens):
        if tokens.shape[1] > 20:
            raise IndexError("out of range")
        return sees_the_past(tokens)

    report = check_model(short, vocabulary=50, causal=True, seed=0, arrays="numpy")
    assert {o.verdict.value for o in report.failures} == {"obscure error"}
    assert check_model(short, vocabulary=50, causal=True, seed=0, arrays="numpy", longest=20).ok


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"causal": None}, "give --causal or --no-causal"),
        ({"vocabulary": None}, "vocabulary got None"),
        ({"mask": "rows"}, "mask got 'rows'"),
        ({"positions": "rope"}, "positions got 'rope'"),
        ({"lacks": ["cash"]}, "did you mean cache"),
        ({"window": 0}, "window got 0"),
        ({"only": ["futures"]}, "did you mean future"),
        ({"level": "all"}, "level got 'all'"),
        ({"windo": 3}, "unexpected setting 'windo'"),
    ],
)
def test_mistakes_are_refused(said, words):
    with pytest.raises((TypeError, ValueError), match=r"check_model: .*") as raised:
        check_model(sees_all, in_process=True, **{"vocabulary": 50, "causal": True, **said})
    assert words in str(raised.value)


@pytest.mark.smoke
def test_a_model_that_fails_at_once_is_refused():
    def model(tokens):
        raise RuntimeError("no weights")

    with pytest.raises(ValueError, match="fails on the plainest call") as raised:
        check_model(model, vocabulary=50, causal=True)
    assert "no weights" in str(raised.value)


DYING = """
import os
import time

import numpy as np

table = np.random.default_rng(0).standard_normal((50, 8))


def model(tokens, how=None):
    if tokens.shape[1] == 13:
        {}
    return table[tokens].cumsum(1)
"""


@pytest.mark.parametrize(
    ("line", "verdict", "words"),
    [
        ("os._exit(3)", "crash", "exit status 3"),
        ("os.kill(os.getpid(), 11)", "crash", "SIGSEGV"),
        ("time.sleep(1000)", "timeout", "no answer in 2 seconds"),
    ],
)
def test_a_death_and_a_hang_are_outcomes(line, verdict, words, tmp_path, monkeypatch):
    (tmp_path / "dying_model.py").write_text(DYING.format(line))
    monkeypatch.syspath_prepend(tmp_path)
    said = {"vocabulary": 50, "causal": True, "timeout": 2, "only": ["future", "past"], "seed": 0}
    report = check_model("dying_model:model", **said)
    assert {o.case.name: o.verdict.value for o in report.failures} == dict.fromkeys(
        ["future: 13 tokens", "future: 6 of 13 tokens", "past: 13 tokens"], verdict
    )
    assert words in report.failures[0].finding.message
    assert len(report.causes) == 1
    assert report.causes[0].harm.value == "crash"
    assert "dying_model" not in sys.modules


def test_the_report_says_that_a_model_was_run_in_this_process(tmp_path, monkeypatch):
    report = check_model(lambda tokens: TABLE[tokens], vocabulary=50, causal=True, only=["batch"])
    assert "lambda" in report.process
    (tmp_path / "living_model.py").write_text(DYING.format("pass"))
    monkeypatch.syspath_prepend(tmp_path)
    assert not check_model("living_model:model", vocabulary=50, causal=True, only=["batch"]).process


def test_a_layer_is_taken_as_it_is():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    for causal in (False, True):
        report = check_model(layer, causal=causal, longest=40, seed=0)
        assert report.ok, [outcome.told() for outcome in report.failures]
        assert report.laws()["padding"].judged

    def forgetful(vectors, mask=None):
        return layer(vectors, vectors, vectors, need_weights=False)[0]

    assert check_model(forgetful, causal=False, width=16, longest=40, seed=0).causes[0].name.startswith("padding")


def layers():
    """Of each library that is installed: a layer, what is said of it, and a name."""
    packages = {"torch": "torch", "nnx": "flax", "linen": "flax", "keras": "keras", "equinox": "equinox"}
    absent = {package: pytest.mark.skip(f"{package} is not installed")
              for package in packages.values() if not importlib.util.find_spec(package)}  # fmt: skip
    return [pytest.param(name, marks=absent.get(package, [])) for name, package in packages.items()]


def layer_of(name, rate=0.25):
    """Two heads of 8 on vectors of 16, with biases, and dropout."""
    if name == "torch":
        import torch

        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(16, 2, batch_first=True, dropout=rate)
        torch.nn.init.normal_(layer.in_proj_bias)
        return layer, {}
    if name == "nnx":
        from flax import nnx

        normal = nnx.initializers.normal()
        return nnx.MultiHeadAttention(2, 16, dropout_rate=rate, bias_init=normal, rngs=nnx.Rngs(0), decode=False), {}
    if name == "linen":
        from flax import linen

        module = linen.MultiHeadDotProductAttention(2, dropout_rate=rate, bias_init=linen.initializers.normal())
        weights = module.init(jax.random.key(0), np.zeros((1, 3, 16), np.float32), deterministic=True)
        return module.bind(weights), {"width": 16}
    if name == "keras":
        from broken_models.in_keras import keras

        layer = keras.layers.MultiHeadAttention(2, 8, dropout=rate, bias_initializer="random_normal")
        layer(*[np.zeros((1, 3, 16), np.float32)] * 2)
        return layer, {"width": 16}
    import equinox

    biases = {f"use_{part}_bias": True for part in ("query", "key", "value", "output")}
    return equinox.nn.MultiheadAttention(2, 16, dropout_p=rate, key=jax.random.key(0), **biases), {}


@pytest.mark.parametrize("name", layers())
def test_the_heads_of_a_layer_are_held_against_its_weights(name):
    layer, said = layer_of(name)
    report = check_model(layer, causal=True, longest=12, only=["heads: a short text"], seed=5, **said)
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert report.counts()["ok"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", layers())
def test_heads_dropout_and_float64_of_a_layer(name):
    layer, said = layer_of(name)
    only = ["heads", "dropout", *["float64"] * (name != "keras")]
    report = check_model(layer, causal=True, longest=12, only=only, seed=5, **said)
    assert report.ok, [outcome.told() for outcome in report.failures]
    judged = {o.case.name for o in report.cases if o.verdict.value == "ok"}
    assert {"heads: a short text", "heads: padding, left", "dropout: two draws", "dropout: mean of draws"} <= judged
    assert ("ways: float64" in judged) == (name != "keras")


def test_heads_that_cannot_be_read_are_not_judged():
    torch = pytest.importorskip("torch")
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True, add_zero_attn=True)
    report = check_model(layer, causal=False, only=["heads"], seed=0)
    assert {o.finding.message for o in report.cases} == {"add_bias_kv and add_zero_attn: there is one more key"}


def test_heads_may_be_parameters_that_require_a_gradient():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.ModuleDict({name: torch.nn.Linear(16, 16, bias=False) for name in ("W_Q", "W_K", "W_V", "W_O")})

    def attend(vectors):
        parts = (layer[name](vectors).unflatten(-1, (2, 8)).transpose(1, 2) for name in ("W_Q", "W_K", "W_V"))
        return layer["W_O"](torch.nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    said = dict(causal=False, width=16, only=["heads: a short text"], seed=0)
    report = check_model(attend, heads=lambda _: {n: x.weight.T for n, x in layer.items()} | {"num_heads": 2}, **said)
    assert report.counts() == {"ok": 1}, str(report)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("weights", "words"),
    [({"num_heads": 2}, "lacks W_Q, W_K, W_V, W_O"), ({"q": 1}, "lacks W_Q"), ({"num_heads": 3}, "do not fit")],
)
def test_weights_that_are_none_are_refused(weights, words):
    square = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), np.eye(8)) if "fit" in words else {}
    with pytest.raises(ValueError, match=words):
        check_model(
            lambda vectors, mask=None: vectors, causal=False, width=8, seed=0, heads=lambda layer: square | weights
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "way"), [("torch", "training mode"), ("torch", "float64"), ("linen", "float64")])
def test_a_script_makes_the_other_way(name, way, tmp_path):
    """Made for two ways that agree, it ends well."""
    pytest.importorskip("torch" if name == "torch" else "flax")
    layer, said = layer_of(name)
    model = described(layer, causal=True, **said)
    one = Computation(np.array([[3, 1, 4]], np.int32))
    found = Found(Finding(Verdict.WRONG, "none"), Evidence(one, one._replace(way=way), (0, 1), (0, 1), 1e-4))
    text = script(model, Law(Case(way, "ways", ""), lambda trial: found), found)
    assert "attendax" not in text
    home = f"import sys\nsys.path[:0] = [{str(TESTS)!r}, {str(KIT)!r}]\nimport test_check_model"
    lines = [line for line in text.splitlines() if not line.startswith("raise NotImplementedError('define ")]
    at = lines.index("# the model") + 1
    lines[at:at] = [home, f"model = test_check_model.layer_of({name!r})[0]"]
    (tmp_path / "shows.py").write_text("\n".join(lines))
    shown = subprocess.run([sys.executable, tmp_path / "shows.py"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("largest: ")


@pytest.mark.parametrize(("settings", "causal"), [({}, False), ({"is_decoder": True}, True)])
def test_a_language_head_on_an_encoder_does_not_hide_the_future(settings, causal):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    model = transformers.BertLMHeadModel(transformers.BertConfig(**sizes, **settings))
    offer = FAMILIES["transformers.modeling_utils.PreTrainedModel"]
    assert offer(model, None).facts["causal"] is causal
    neox = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes))  # its is_decoder is False, and not read
    assert offer(neox, None).facts["causal"] is True
