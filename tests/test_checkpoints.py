"""ModernBERT, state dicts of PyTorch, files of our own: every tensor in its place, hostile files in one line."""

import dataclasses
import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import spec
from attendax.encoders import encode, load, load_bert, load_modernbert, load_torch, save, stack_layers
from test_encoder_options import BERT, CONFIGS, IDS, MASK, random_params

pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")

SIZES = {
    "model_type": "modernbert",
    "vocab_size": 17,
    "max_position_embeddings": 13,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "num_hidden_layers": 4,
    "local_attention": 2,
}


def modern_tensors(*, layers=4, M=12, F=11):
    rng = np.random.default_rng(0)
    shapes = {"embeddings.tok_embeddings.weight": (17, M), "embeddings.norm.weight": (M,), "final_norm.weight": (M,)}
    for number in range(layers):
        parts = {"attn.Wqkv": (3 * M, M), "attn.Wo": (M, M), "mlp.Wi": (2 * F, M), "mlp.Wo": (M, F), "mlp_norm": (M,)}
        parts |= {"attn_norm": (M,)} if number else {}
        shapes |= {f"layers.{number}.{name}.weight": shape for name, shape in parts.items()}
    return {name: rng.normal(0.3, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def write(directory, tensors, settings):
    from safetensors.numpy import save_file

    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(settings))
    return directory


class TestModernBert:
    def test_every_tensor_in_its_place(self, tmp_path):
        tensors = modern_tensors()
        params, config = load_modernbert(write(tmp_path, tensors, SIZES))
        assert config.window == (None, 1, 1, None)
        assert config.rope_theta == (160000.0, 10000.0, 10000.0, 160000.0)
        assert (config.eps, config.activation, config.first_norm, config.final_norm) == (1e-5, "geglu", False, True)
        block, name = params.blocks[2], "layers.2."
        qkv = tensors[f"{name}attn.Wqkv.weight"]
        for k, W in enumerate(block.attention[:3]):
            np.testing.assert_array_equal(W, qkv[12 * k : 12 * k + 12].T)
        np.testing.assert_array_equal(block.attention.W_O, tensors[f"{name}attn.Wo.weight"].T)
        np.testing.assert_array_equal(block.W1, tensors[f"{name}mlp.Wi.weight"].T)
        np.testing.assert_array_equal(block.W2, tensors[f"{name}mlp.Wo.weight"].T)
        np.testing.assert_array_equal(block.gamma1, tensors[f"{name}attn_norm.weight"])
        np.testing.assert_array_equal(block.gamma2, tensors[f"{name}mlp_norm.weight"])
        np.testing.assert_array_equal(params.gamma, tensors["final_norm.weight"])
        np.testing.assert_array_equal(params.embeddings.token, tensors["embeddings.tok_embeddings.weight"])
        np.testing.assert_array_equal(params.embeddings.gamma, tensors["embeddings.norm.weight"])
        assert params.blocks[0].gamma1 is None
        assert len(jax.tree.leaves(params)) == len(tensors) + 2 * 4  # three weights of one tensor, in each layer

    def test_prefix_heads_and_newer_settings(self, tmp_path):
        tensors = {f"model.{name}": x for name, x in modern_tensors().items()}
        tensors |= {"head.dense.weight": np.zeros((12, 12), np.float32), "decoder.bias": np.zeros(17, np.float32)}
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": 50.0},
            "sliding_attention": {"rope_theta": 7.0},
        }
        kinds = ["sliding_attention", "full_attention"] * 2
        _, config = load_modernbert(write(tmp_path, tensors, SIZES | {"rope_parameters": rope, "layer_types": kinds}))
        assert (config.rope_theta, config.window) == ((7.0, 50.0) * 2, (1, None) * 2)

    @pytest.mark.parametrize("name", ["layers.3.attn.Wqkv.weight", "final_norm.weight", "layers.1.attn_norm.weight"])
    def test_a_missing_tensor_is_named(self, tmp_path, name):
        tensors = modern_tensors()
        del tensors[name]
        with pytest.raises(ValueError, match=rf"^load_modernbert: model.safetensors lacks {name}$"):
            load_modernbert(write(tmp_path, tensors, SIZES))

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"model_type": "bert"}, NotImplementedError, "model_type='bert', supported is 'modernbert'"),
            (
                {"num_hidden_layers": 3 * 10**8},
                ValueError,
                "num_hidden_layers=300000000, but model.safetensors holds 4",
            ),
            ({"num_hidden_layers": 3}, ValueError, "no place for, layers.3"),
            ({"attention_bias": True}, NotImplementedError, "attention_bias and mlp_bias that differ"),
            ({"attention_bias": True, "mlp_bias": True}, ValueError, "lacks layers.0.attn.Wo.bias"),
            ({"norm_bias": "no"}, ValueError, "norm_bias='no', expected true or false"),
            ({"hidden_activation": "relu6"}, NotImplementedError, "hidden_activation='relu6', supported are gelu"),
            ({"layer_types": ["full_attention"]}, ValueError, "layer_types=.*, expected 4 times"),
            ({"rope_parameters": {"full_attention": 3}}, ValueError, "rope_parameters=.*, expected an object"),
            ({"rope_scaling": {"factor": 8}}, NotImplementedError, "rope_scaling=.*, supported is None"),
            ({"global_rope_theta": 0}, ValueError, "global_rope_theta=0.0, expected a number above 0"),
            ({"global_attn_every_n_layers": 0}, ValueError, "global_attn_every_n_layers=0, expected an integer"),
            ({"hidden_size": 9}, ValueError, "hidden_size=9, expected heads of an even width"),
            ({"local_attention": "all"}, ValueError, "local_attention='all', expected an integer"),
        ],
    )
    def test_refuses_a_config(self, tmp_path, change, error, message):
        with pytest.raises(error, match=rf"^load_modernbert: (?s:.*){message}"):
            load_modernbert(write(tmp_path, modern_tensors(), SIZES | change))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and torch
class TestTransformers:
    """The published implementations, on random weights, as they write them."""

    def test_modernbert(self, tmp_path):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        settings = {name: value for name, value in SIZES.items() if name != "model_type"} | {"pad_token_id": 0}
        settings |= {"initializer_range": 0.4, "_attn_implementation": "eager"}
        self.compare(
            tmp_path, torch, transformers.ModernBertModel(transformers.ModernBertConfig(**settings)), load_modernbert
        )

    def test_bert(self, tmp_path):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        settings = {name: SIZES[name] for name in SIZES if name not in ("model_type", "local_attention")}
        config = transformers.BertConfig(**settings, initializer_range=0.4, _attn_implementation="eager")
        self.compare(tmp_path, torch, transformers.BertModel(config), load_bert)

    def compare(self, tmp_path, torch, model, load):
        ids = np.random.default_rng(0).integers(1, 17, (2, 9))
        mask = np.arange(9) < np.array([[9], [6]])
        model.eval()
        with torch.no_grad():
            wanted = model(torch.tensor(ids), attention_mask=torch.tensor(mask).long()).last_hidden_state.numpy()
        model.save_pretrained(tmp_path)
        params, config = load(tmp_path)
        for found in (
            encode(params, ids, config=config, mask=mask, twin=spec),
            encode(params, ids, config=config, mask=mask),
        ):
            np.testing.assert_allclose(found[mask], wanted[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of torch: of how its own fast path is switched off
class TestTorch:
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("bias", [True, False])
    def test_encoder_and_layer(self, norm_first, bias):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        torch.manual_seed(0)
        options = {"norm_first": norm_first, "batch_first": True, "dropout": 0.0, "bias": bias, "activation": "gelu"}
        layer = torch.nn.TransformerEncoderLayer(12, 3, 11, **options)
        module = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(12), enable_nested_tensor=False)
        x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
        with torch.no_grad():
            for weight in module.parameters():
                weight += 0.1 * torch.randn(weight.shape)
            wanted, one = module(torch.tensor(x)).numpy(), module.layers[1](torch.tensor(x)).numpy()
        given = {"num_heads": 3, "norm": "pre" if norm_first else "post", "activation": "gelu", "eps": 1e-5}
        params = load_torch(module.state_dict())
        found = spec.encoder_block(load_torch(module.layers[1].state_dict()), x, **given)
        np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-5)
        for block in params.blocks:
            x = spec.encoder_block(block, x, **given)
        np.testing.assert_allclose(spec.layer_norm(x, params.gamma, params.beta, 1e-5), wanted, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
    def test_attention(self, widths):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        torch.manual_seed(0)
        module = torch.nn.MultiheadAttention(12, 3, batch_first=True, **widths)
        rng = np.random.default_rng(0)
        shapes = (2, 5, 12), (2, 7, widths.get("kdim", 12)), (2, 7, widths.get("vdim", 12))
        arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        with torch.no_grad():
            module.in_proj_bias += 0.3
            wanted = module(*map(torch.tensor, arrays))[0].numpy()
        params = load_torch(module.state_dict())
        np.testing.assert_allclose(
            spec.multi_head_attention(params, *arrays, num_heads=3), wanted, rtol=1e-5, atol=1e-5
        )

    @pytest.mark.parametrize(
        ("tensors", "error", "message"),
        [
            ("weights.pt", TypeError, "state_dict must map names to tensors, got str"),
            (
                {"in_proj_weight": np.ones((18, 6), int)},
                TypeError,
                "in_proj_weight must be a floating tensor, got int64",
            ),
            ({"in_proj_weight": np.ones((18, 6)), "bias_k": np.ones(6)}, NotImplementedError, "add_bias_kv=True"),
            ({"out_proj.weight": np.ones((6, 6))}, ValueError, "the state dict lacks in_proj_weight"),
            ({"in_proj_weight": np.ones((17, 6)), "out_proj.weight": np.ones((6, 6))}, ValueError, r"shape \(17, 6\)"),
            ({"layers.0.x": np.ones(6), "layers.7.x": np.ones(6)}, ValueError, "has layers 0, 7, expected 0 to 1"),
            (
                {"in_proj_weight": np.ones((18, 6)), "out_proj.weight": np.ones((6, 6)), "extra": np.ones(2)},
                ValueError,
                "the state dict holds, and an encoder has no place for, extra",
            ),
        ],
    )
    def test_refuses(self, tensors, error, message):
        with pytest.raises(error, match=rf"^load_torch: (?s:.*){message}"):
            load_torch(tensors)


def rewritten(path, change):
    """The file with its header changed."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


class TestOurs:
    @pytest.mark.parametrize("name", [*CONFIGS, "bert"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
    def test_there_and_back(self, tmp_path, name, dtype):
        config = CONFIGS.get(name, BERT)
        params = random_params(config, dtype=dtype)
        save(tmp_path / "encoder.safetensors", params, config)
        assert [file.name for file in tmp_path.iterdir()] == ["encoder.safetensors"]
        found, read = load(str(tmp_path / "encoder.safetensors"))
        assert read == config
        assert jax.tree.structure(found) == jax.tree.structure(params)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())

    def test_a_stack_is_stored_layer_by_layer(self, tmp_path):
        config = dataclasses.replace(BERT, num_layers=3)
        params = random_params(config, dtype=np.float32)
        save(tmp_path / "a", stack_layers(params, config), config)
        found, _ = load(tmp_path / "a")
        jax.tree.map(np.testing.assert_array_equal, found, params)
        np.testing.assert_array_equal(*(encode(p, IDS, config=config, mask=MASK, twin=spec) for p in (found, params)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda h: h["__metadata__"].pop("format"), "is not a file that save wrote"),
            (lambda h: h["__metadata__"].update(config="[" * 5000), "is not a JSON object"),
            (lambda h: h["__metadata__"].update(config='{"vocab_size": 3}'), "lacks or adds activation, bias"),
            (
                lambda h: h.update({"blocks.0.attention.W_X": h.pop("blocks.0.attention.W_Q")}),
                "lacks blocks.0.attention.W_Q",
            ),
            (lambda h: h.pop("embeddings.gamma"), "lacks embeddings.gamma|corrupt"),
            (lambda h: h["embeddings.token"].update(shape=[6, 34]), "tensor embeddings.token has shape"),
            (lambda h: h["embeddings.gamma"].update(dtype="I32"), "tensor embeddings.gamma has dtype I32"),
        ],
    )
    def test_refuses_a_header(self, tmp_path, change, message):
        path = tmp_path / "encoder"
        save(path, random_params(BERT, dtype=np.float32), BERT)
        rewritten(path, change)
        with pytest.raises(ValueError, match=rf"^load: (?s:.*)({message})"):
            load(path)

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"num_layers": 10**9}, "has num_layers=1000000000, but there are 3 layers"),
            ({"num_layers": True}, "has num_layers=True"),
            ({"vocab_size": 2**40}, "a size that is no integer up to"),
            ({"d_model": 12.0}, "a size that is no integer up to"),
            ({"norm": "both"}, "is wrong: EncoderConfig: norm must be one of"),
            ({"window": [1, 2]}, "is wrong: EncoderConfig: window has 2 values"),
            ({"rope_theta": {"a": 1}}, "is wrong: EncoderConfig: rope_theta must be"),
            ({"activation": "x" * 10**6}, "is wrong: EncoderConfig: activation must be"),
            ({"vocab_size": 2**31 - 1}, "tensor embeddings.token has shape"),
        ],
    )
    def test_refuses_a_configuration(self, tmp_path, setting, message):
        path = tmp_path / "encoder"
        save(path, random_params(BERT, dtype=np.float32), BERT)

        def change(header):
            settings = json.loads(header["__metadata__"]["config"]) | setting
            header["__metadata__"]["config"] = json.dumps(settings)

        rewritten(path, change)
        with pytest.raises(ValueError, match=rf"^load: .*{message}") as caught:
            load(path)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize("content", [b"", b"\x80\x04cos\nsystem\n", b"\xff" * 100])
    def test_refuses_other_files(self, tmp_path, content):
        """A pickle among them: nothing in it is run."""
        path = tmp_path / "encoder"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^load: .* is corrupt"):
            load(path)
        with pytest.raises(FileNotFoundError, match=r"^load: .*nowhere is missing"):
            load(tmp_path / "nowhere")

    def test_refuses_to_save_what_does_not_fit(self, tmp_path):
        with pytest.raises(ValueError, match=r"^save: W1 of layer 0 of params is not that"):
            save(tmp_path / "a", random_params(dataclasses.replace(BERT, d_ff=7)), BERT)
        assert not any(tmp_path.iterdir())
