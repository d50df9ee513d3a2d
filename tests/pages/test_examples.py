"""The scripts in docs/examples run, at a tiny size, and say what is true."""

import importlib
import re
import sys

import jax
import numpy as np
import pytest

import small_bert
from attendax.encoders.embedding import embed_by_specification
from attendax.encoders.sentences import load_sentence_encoder, tokenize
from attendax.kernels.backends import default
from places import ROOT

EXAMPLES = ROOT / "docs" / "examples"
README = ROOT / "README.md"


@pytest.fixture
def example(monkeypatch):
    """An example as a module, run as a user's JAX is set."""
    pytest.importorskip("optax", reason="optax is not installed (extra 'models')")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield importlib.import_module
    for name in ("sorting", *(path.stem for path in EXAMPLES.glob("*.py"))):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_two_backwards_draw_one_curve(example, tmp_path):
    """The promise of the picture in the README, 1e-6, and what is really there; and something is learnt."""
    module = example("two_backwards")
    autodiff, hand = module.curves(50, width=8, layers=1)
    assert max(abs(a - b) for a, b in zip(autodiff, hand, strict=True)) < 1e-12
    assert sum(autodiff[-10:]) < sum(autodiff[:10])
    module.draw(autodiff, hand, str(tmp_path / "curves.svg"))
    assert (tmp_path / "curves.svg").stat().st_size > 1000


@pytest.mark.slow
def test_an_encoder_from_scratch(example, tmp_path):
    pytest.importorskip("orbax.checkpoint", reason="orbax is not installed (extra 'models')")
    arguments = ["--steps", "60", "--width", "32", "--layers", "1", "--picture", str(tmp_path / "loss.png")]
    accuracy = example("encoder_from_scratch").main([*arguments, "--checkpoint", str(tmp_path / "checkpoint")])
    assert accuracy > 0.15  # by chance: 0.03
    assert (tmp_path / "loss.png").exists()


@pytest.mark.slow
def test_fine_tuning(example, tmp_path):
    vocabulary = [
        *small_bert.VOCABULARY,
        *["blue", "bird", "asleep", "delivery", "van", "switched", "off", "leaks", "oil"],
    ]
    config = small_bert.CONFIG | {"vocab_size": len(vocabulary), "num_hidden_layers": 1}
    small_bert.write_checkpoint(tmp_path / "bert", config=config, vocabulary=vocabulary)
    folders = "--weights", str(tmp_path / "bert"), "--save", str(tmp_path / "tuned")
    example("finetune_minilm").main(["--steps", "12", "--rate", "0.01", *folders])
    from attendax.encoders import load

    assert load(tmp_path / "tuned")[1].vocab_size == len(vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "bound"),
    [
        ("decode_with_cache", ["--tokens", "7", "--width", "16"], 1e-5),
        ("curvature", ["--tokens", "7", "--width", "8", "--layers", "1", "--rounds", "2"], 0.05),
    ],
)
def test_what_an_example_compares_agrees(example, name, arguments, bound):
    with jax.enable_x64(name == "curvature"):  # of a tiny curvature a stencil in float32 is mere noise
        assert example(name).main(arguments) < bound


def test_the_nearest_lines(monkeypatch, tmp_path, capsys):
    """Those of the specification, by the same weights; a line without words is not among them."""
    pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    weights = str(small_bert.write_checkpoint(tmp_path / "bert"))
    lines = ["a man is eating", "", "the meal", "food food food", "a man"]
    (tmp_path / "notes.txt").write_text("\n".join(lines) + "\n", "utf-8")
    encoder = load_sentence_encoder(weights)
    vectors = np.array([embed_by_specification(encoder, tokenize(encoder, text)) for text in (*lines, "a man is")])
    nearest = [k + 1 for k in np.argsort(-vectors[:-1] @ vectors[-1]) if lines[k]][:3]
    module = importlib.import_module("nearest_lines")
    for _ in range(2):  # the second time by the vectors that lie there
        found = module.main([str(tmp_path / "notes.txt"), "a man is", "--top", "3", "--weights", weights])
        assert found == [(number, lines[number - 1]) for number in nearest]
    assert "wrote 5 embeddings" in capsys.readouterr().err


@pytest.mark.skipif(default() != "native", reason="bits of a row are promised by the native library")
def test_what_is_drawn_token_by_token_is_scored_with_the_same_bits(monkeypatch, capsys):
    """By attendax; by jax.nn they are near. The lines are those of the page."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        found = importlib.import_module("same_bits").main(["--tokens", "24", "--width", "64", "--layers", "2"])
    assert found["attendax"] == 0
    assert 0 < found["jax.nn"] < 1e-4
    printed = [re.sub(r"\d\S*", "#", line) for line in capsys.readouterr().out.splitlines()]
    page = (EXAMPLES.parent / "same-bits.md").read_text("utf-8")
    text = re.sub(r"\d\S*", "#", page.replace("`", ""))
    assert all(line in text for line in printed), printed


def test_the_readme_shows_the_picture():
    assert (EXAMPLES.parent / "_static" / "two-backwards.png").exists()
    text = README.read_text()
    assert "docs/_static/two-backwards.png" in text
    assert "docs/examples/two_backwards.py" in text
