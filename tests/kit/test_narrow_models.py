"""`check_model` of models in half precision: they are refused, with what to do."""

import ml_dtypes
import numpy as np
import pytest

from attendax.cli import main
from attendax.conformance import check_model
from test_sees import EMBEDDING, SAID, attention


def model_of(dtype, results=None):
    """A causal model whose parts and results are of a dtype; the results may be widened."""

    def model(tokens):
        return attention(EMBEDDING[tokens], "j <= i").astype(dtype).astype(results or dtype)

    return model


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("dtype", "results", "said"),
    [
        (ml_dtypes.bfloat16, None, "bfloat16"),
        (np.float16, None, "float16"),
        (ml_dtypes.bfloat16, np.float32, "numbers of bfloat16"),
        (np.float16, np.float32, "numbers of float16"),
    ],
)
def test_half_precision_is_refused(dtype, results, said):
    with pytest.raises(ValueError, match=rf"gives {said}, whose rounding may hide .* does: compute in float32"):
        check_model(model_of(dtype, results), causal=True, **SAID)


@pytest.mark.smoke
def test_a_model_of_few_and_plain_numbers_is_not_of_half_precision():
    """Halves, quarters and whole numbers are numbers of any dtype."""

    def model(tokens):
        return np.cumsum(tokens[..., None] * np.float32([0.25, 0.5]), axis=1)

    assert "future" in check_model(model, causal=True, only=["future"], **SAID | {"vocabulary": 4}).laws()


@pytest.mark.smoke
def test_bits_are_asked_of_any_dtype():
    assert check_model(model_of(np.float16), causal=True, only=["future"], **SAID | {"claims": ["bits"]}).ok


@pytest.mark.parametrize("encoder", [True, False])
def test_a_module_in_bfloat16_is_refused_and_passes_in_float32(encoder):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)
    kind, config = ("BertModel", "BertConfig") if encoder else ("LlamaForCausalLM", "LlamaConfig")
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(torch.bfloat16)
    said = {"causal": not encoder, "positions": "absolute" if encoder else "rotary", "seed": 1}
    with pytest.raises(ValueError, match=r"gives bfloat16, .*: give model\.float\(\)"):
        check_model(model, **said)
    report = check_model(model.float(), only=["future", "past", "positions: order"], **said)
    assert report.ok, [outcome.told() for outcome in report.failures]


def test_the_command_ends_with_status_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "half.py").write_text(
        "import numpy as np\n\n\ndef model(tokens):\n    return np.sin(1.0 * tokens[..., None]).astype(np.float16)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--model", "half:model", "--causal", "--vocabulary", "50", "--quiet"]) == 2
    assert "half:model gives float16, whose rounding may hide what a token does" in capsys.readouterr().err
