"""Weights of BERT checkpoints: every tensor in its place, everything else refused by name."""

import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import small_bert
from attendax.encoders import EncoderConfig, load_bert, save_bert

safetensors = pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")

CONFIG = EncoderConfig(17, 13, 2, d_model=6, num_heads=3, d_ff=11, num_layers=2)


def old_name(name):
    """The name of a tensor in old files, which name the weights of a norm as TensorFlow does."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


GAMMA = "encoder.layer.1.output.LayerNorm.gamma"
WRONG = {  # how the tensors of a file are changed, and what the error says
    "one too many": (lambda x: x | {"encoder.layer.2.output.dense.bias": np.zeros(6, np.float32)},
                     r"does not have: encoder.layer.2.output.dense.bias$"),
    "with and without a prefix": (lambda x: x | {"bert.embeddings.LayerNorm.bias": x["embeddings.LayerNorm.bias"]},
                                  "holds a tensor twice"),
    "both names of a norm": (
        lambda x: x | {"embeddings.LayerNorm.gamma": x["embeddings.LayerNorm.weight"]},
        r"twice, as embeddings.LayerNorm.gamma and as embeddings.LayerNorm.weight; keep one of them$"),
    "an old file lacks one": (lambda x: {old_name(name): x[name] for name in x if old_name(name) != GAMMA},
                              r"^load_bert: model.safetensors lacks encoder.layer.1.output.LayerNorm.w"),
    "one of an old file is short": (
        lambda x: {old_name(name): x[name][1:] if old_name(name) == GAMMA else x[name] for name in x},
        rf"tensor {GAMMA} has shape \(5,\)"),
    "another model": (lambda x: {f"roberta.{name}": x[name] for name in x},
                      r"holds 0 layers; its tensors are roberta.embeddings.LayerNorm.bias, "),
    "many are missing": (lambda x: {name: x[name] for name in x if "layer.1." not in name or "output" in name},
                         r"lacks encoder.layer.1.attention.self.key.bias.* and 4 more$"),
}  # fmt: skip


LINEAR = {  # our names of weights, and theirs
    "W_Q": "attention.self.query", "W_K": "attention.self.key", "W_V": "attention.self.value",
    "W_O": "attention.output.dense", "W1": "intermediate.dense", "W2": "output.dense",
}  # fmt: skip


class TestLoadBert:
    def test_every_tensor_in_its_place(self, tmp_path):
        tensors = small_bert.random_tensors()
        params, config = load_bert(small_bert.write_checkpoint(tmp_path, tensors=tensors))
        assert config == CONFIG
        found = {"embeddings." + name: leaf for name, leaf in params.embeddings._asdict().items()}
        for index, block in enumerate(params.blocks):
            found |= {f"{index}.{name}": leaf for name, leaf in (block.attention._asdict() | block._asdict()).items()}
        expected = {
            "embeddings.token": tensors["embeddings.word_embeddings.weight"],
            "embeddings.position": tensors["embeddings.position_embeddings.weight"],
            "embeddings.token_type": tensors["embeddings.token_type_embeddings.weight"],
            "embeddings.gamma": tensors["embeddings.LayerNorm.weight"],
            "embeddings.beta": tensors["embeddings.LayerNorm.bias"],
        }
        for index in range(2):
            layer = {name.removeprefix(f"encoder.layer.{index}."): tensor for name, tensor in tensors.items()}
            for ours, theirs in LINEAR.items():
                bias = ours.replace("W", "b")
                expected |= {f"{index}.{ours}": layer[f"{theirs}.weight"].T, f"{index}.{bias}": layer[f"{theirs}.bias"]}
            for number, theirs in enumerate(("attention.output.LayerNorm", "output.LayerNorm"), 1):
                expected[f"{index}.gamma{number}"] = layer[f"{theirs}.weight"]
                expected[f"{index}.beta{number}"] = layer[f"{theirs}.bias"]
        assert len(expected) == len(tensors)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)
            assert found[name].dtype == np.float32
            assert found[name].flags.c_contiguous

    @pytest.mark.parametrize("name", sorted(small_bert.random_tensors()))
    def test_a_missing_tensor_is_named(self, tmp_path, name):
        tensors = small_bert.random_tensors()
        del tensors[name]
        small_bert.write_checkpoint(tmp_path, tensors=tensors)
        with pytest.raises(ValueError, match=rf"^load_bert: model.safetensors lacks {name}$"):
            load_bert(tmp_path)

    @pytest.mark.parametrize("name", sorted(small_bert.random_tensors()))
    def test_a_tensor_of_another_shape_is_named(self, tmp_path, name):
        """Transposed where that shows in the shape, else a row short."""
        tensors = small_bert.random_tensors()
        turned = tensors[name].T.copy()
        tensors[name] = turned if turned.shape != tensors[name].shape else turned[1:]
        small_bert.write_checkpoint(tmp_path, tensors=tensors)
        with pytest.raises(ValueError, match=rf"^load_bert: tensor {name} has shape .*, config.json says"):
            load_bert(tmp_path)

    def test_tensors_of_heads_and_prefix(self, tmp_path):
        """A checkpoint saved with a head: names begin with ``bert.``, and there is more than the encoder."""
        tensors = {f"bert.{name}": tensor for name, tensor in small_bert.random_tensors().items()}
        tensors |= {
            "bert.embeddings.position_ids": np.arange(13)[None],
            "bert.pooler.dense.weight": np.zeros((6, 6), np.float32),
            "cls.predictions.bias": np.zeros(17, np.float32),
        }
        prefixed, _ = load_bert(small_bert.write_checkpoint(tmp_path / "prefixed", tensors=tensors))
        plain, _ = load_bert(small_bert.write_checkpoint(tmp_path / "plain"))
        chex.assert_trees_all_equal(prefixed, plain)

    @pytest.mark.smoke
    def test_names_of_norms_in_old_files(self, tmp_path):
        """As bert-base-uncased has them: gamma and beta, a prefix, the heads of pre-training, no ``model_type``."""
        tensors = {f"bert.{old_name(name)}": tensor for name, tensor in small_bert.random_tensors().items()}
        assert sum(name.endswith((".gamma", ".beta")) for name in tensors) == 10
        tensors |= {
            "bert.embeddings.position_ids": np.arange(13)[None],
            "cls.predictions.transform.LayerNorm.gamma": np.ones(6, np.float32),
            "cls.predictions.transform.LayerNorm.beta": np.zeros(6, np.float32),
            "cls.seq_relationship.weight": np.zeros((2, 6), np.float32),
        }
        settings = {key: value for key, value in small_bert.CONFIG.items() if key != "model_type"}
        settings |= {"architectures": ["BertForMaskedLM"], "gradient_checkpointing": False}
        small_bert.write_checkpoint(tmp_path / "old", config=settings, tensors=tensors)
        params, config = load_bert(tmp_path / "old")
        plain, _ = load_bert(small_bert.write_checkpoint(tmp_path / "plain"))
        chex.assert_trees_all_equal(params, plain)

        save_bert(tmp_path / "tuned", params, config, like=tmp_path / "old")
        chex.assert_trees_all_equal(load_bert(tmp_path / "tuned")[0], plain)
        with safetensors.safe_open(tmp_path / "tuned" / "model.safetensors", framework="numpy") as file:
            assert set(file.keys()) == set(tensors), "names are those of the file that it is like"

    @pytest.mark.smoke
    @pytest.mark.parametrize("what", WRONG)
    def test_tensors_that_are_wrong_are_named(self, tmp_path, what):
        change, message = WRONG[what]
        small_bert.write_checkpoint(tmp_path, tensors=change(small_bert.random_tensors()))
        with pytest.raises(ValueError, match=message):
            load_bert(tmp_path)

    @pytest.mark.parametrize("architectures", [None, [], ["BertGenerationEncoder"], ["RobertaModel"], "BertModel", [3]])
    def test_a_config_of_no_known_kind(self, tmp_path, architectures):
        settings = {key: value for key, value in small_bert.CONFIG.items() if key != "model_type"}
        if architectures is not None:
            settings["architectures"] = architectures
        small_bert.write_checkpoint(tmp_path, config=settings)
        with pytest.raises(NotImplementedError, match=r'no model_type, and .*add "model_type": "bert" to it\.$'):
            load_bert(tmp_path)

    @pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
    def test_half_precision_is_widened_exactly(self, tmp_path, dtype):
        tensors = small_bert.random_tensors(dtype=dtype)
        params, _ = load_bert(small_bert.write_checkpoint(tmp_path, tensors=tensors))
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
        stored = tensors["encoder.layer.1.output.dense.weight"]
        np.testing.assert_array_equal(params.blocks[1].W2.T, stored.astype(np.float32))

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [("gelu", "gelu"), ("relu", "relu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")],
    )
    def test_activation(self, tmp_path, theirs, ours):
        small_bert.write_checkpoint(tmp_path, config=small_bert.CONFIG | {"hidden_act": theirs, "layer_norm_eps": 1e-5})
        _, config = load_bert(tmp_path)
        assert (config.activation, config.eps) == (ours, 1e-5)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"model_type": "roberta"}, NotImplementedError, "model_type='roberta', supported is 'bert'"),
            ({"model_type": None}, NotImplementedError, "no model_type, .* supported is 'bert'"),
            ({"hidden_act": "silu"}, NotImplementedError, "hidden_act='silu', supported are gelu, relu"),
            ({"position_embedding_type": "rotary"}, NotImplementedError, "position_embedding_type='rotary'"),
            ({"is_decoder": True}, NotImplementedError, "is_decoder=True"),
            ({"hidden_size": 8}, ValueError, "hidden_size=8, which num_attention_heads=3 does not divide"),
            ({"num_hidden_layers": True}, ValueError, "config.json has num_hidden_layers=True, expected an integer"),
            ({"hidden_act": ["gelu"]}, ValueError, r"config.json has hidden_act=\['gelu'\], expected a string"),
            ({"hidden_act": None}, ValueError, "config.json has hidden_act=None, expected a string"),
            ({"num_hidden_layers": 1}, ValueError, "does not have: encoder.layer.1.* and 12 more"),
        ],
    )
    def test_refuses_a_config(self, tmp_path, change, error, message):
        small_bert.write_checkpoint(tmp_path, files={"config.json": small_bert.CONFIG | change})
        with pytest.raises(error, match=message):
            load_bert(tmp_path)

    @pytest.mark.smoke
    def test_refuses_a_config_without_sizes(self, tmp_path):
        small_bert.write_checkpoint(tmp_path, files={"config.json": {"model_type": "bert", "hidden_size": 6}})
        with pytest.raises(ValueError, match=r"^load_bert: config.json lacks vocab_size, max_position_embeddings"):
            load_bert(tmp_path)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_missing_file_is_named(self, tmp_path, name):
        (small_bert.write_checkpoint(tmp_path) / name).unlink()
        with pytest.raises(FileNotFoundError, match=rf"^load_bert: .*{name} is missing"):
            load_bert(tmp_path)

    def test_a_missing_directory_is_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"^load_bert: directory .*nowhere does not exist$"):
            load_bert(tmp_path / "nowhere")

    def test_without_safetensors(self, tmp_path, monkeypatch):
        small_bert.write_checkpoint(tmp_path)
        monkeypatch.setitem(sys.modules, "safetensors", None)
        with pytest.raises(
            ModuleNotFoundError,
            match=r'safetensors is not installed; run, in a clone of attendax: .*pip install ".\[demo\]"$',
        ):
            load_bert(tmp_path)
