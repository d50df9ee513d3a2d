"""ModernBERT, state dicts of PyTorch, files of our own: every tensor in its place, hostile files in one line."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, rotary, spec
from attendax.encoders import (
    encode,
    load,
    load_bert,
    load_modernbert,
    load_torch,
    save,
    save_modernbert,
    stack_layers,
    to_torch,
)
from random_encoders import IDS, MASK, random_params
from small_bert import rewrite
from test_encoder_options import BERT, CONFIGS

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

    @pytest.mark.parametrize(
        ("scaled", "wanted"),
        [
            ({"rope_type": "linear", "factor": 2.0}, rotary.interpolated(4, 2.0, 50.0)),
            ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4},
             rotary.yarn(4, 8.0, trained=32, theta=50.0, beta_fast=4)),
            ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 2},
             rotary.llama3(4, 8.0, trained=32, theta=50.0, low_freq_factor=2)),
        ],
    )  # fmt: skip
    def test_frequencies_of_longer_texts(self, tmp_path, scaled, wanted):
        rope = {"full_attention": scaled | {"rope_theta": 50.0}, "sliding_attention": {"rope_theta": 7.0}}
        params, config = load_modernbert(write(tmp_path, modern_tensors(), SIZES | {"rope_parameters": rope}))
        assert config.rope_theta == (wanted, 7.0, 7.0, wanted)
        tokens = np.arange(5)[None]
        found = encode(tokens, params, config=config)
        plain = encode(tokens, params, config=dataclasses.replace(config, rope_theta=(50.0, 7.0, 7.0, 50.0)))
        np.testing.assert_allclose(found, encode(tokens, params, config=config, twin=spec), rtol=1e-4, atol=1e-5)
        assert np.abs(found - plain).max() > 1e-3
        save(tmp_path / "own.safetensors", params, config)
        assert load(tmp_path / "own.safetensors")[1] == config
        one = dataclasses.replace(config, rope_theta=wanted)
        save(tmp_path / "own.safetensors", params, one)
        assert load(tmp_path / "own.safetensors")[1] == one
        with pytest.raises(NotImplementedError, match="rope_theta"):
            save_modernbert(tmp_path / "theirs", params, config)

    def test_frequencies_that_are_wrong(self, tmp_path):
        for scaled in ({"rope_type": "yarn", "factor": 8.0}, {"rope_type": "linear", "factor": 0}):
            rope = {name: scaled for name in ("full_attention", "sliding_attention")}
            with pytest.raises(ValueError, match="rope_parameters that are wrong"):
                load_modernbert(write(tmp_path, modern_tensors(), SIZES | {"rope_parameters": rope}))

    @pytest.mark.parametrize("name", ["layers.3.attn.Wqkv.weight", "final_norm.weight", "layers.1.attn_norm.weight"])
    def test_a_missing_tensor_is_named(self, tmp_path, name):
        tensors = modern_tensors()
        del tensors[name]
        with pytest.raises(ValueError, match=rf"^load_modernbert: model.safetensors lacks {name}$"):
            load_modernbert(write(tmp_path, tensors, SIZES))

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"model_type": "bert"}, NotImplementedError, "model_type='bert', supported is 'modernbert'"),
            ({"num_hidden_layers": 3 * 10**8}, ValueError,
             "num_hidden_layers=300000000, but model.safetensors holds 4"),
            ({"num_hidden_layers": 3}, ValueError, "does not have: layers.3"),
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
    )  # fmt: skip
    def test_refuses_a_config(self, tmp_path, change, error, message):
        with pytest.raises(error, match=rf"^load_modernbert: (?s:.*){message}"):
            load_modernbert(write(tmp_path, modern_tensors(), SIZES | change))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers and torch
def test_bert_of_transformers(torch, transformers, tmp_path):
    """The published implementation, on random weights, as it writes them; ModernBERT is in test_saved_models.py."""
    settings = {name: SIZES[name] for name in SIZES if name not in ("model_type", "local_attention")}
    model = transformers.BertModel(
        transformers.BertConfig(**settings, initializer_range=0.4, _attn_implementation="eager")
    )
    ids = np.random.default_rng(0).integers(1, 17, (2, 9))
    mask = np.arange(9) < np.array([[9], [6]])
    model.eval()
    with torch.no_grad():
        wanted = model(torch.tensor(ids), attention_mask=torch.tensor(mask).long()).last_hidden_state.numpy()
    model.save_pretrained(tmp_path)
    params, config = load_bert(tmp_path)
    for twin in (ops, spec):
        found = encode(ids, params, config=config, mask=mask, twin=twin)
        np.testing.assert_allclose(found[mask], wanted[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of torch: of how its own fast path is switched off
class TestTorch:
    @pytest.mark.sample(4)
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize(
        ("bias", "activation", "ours"),
        [(True, "relu", "relu"), (False, "gelu", "gelu"), (True, "tanh", "gelu_tanh"), (True, "silu", "silu")],
    )
    def test_there_and_back(self, torch, norm_first, bias, activation, ours):
        """The result of ``load_torch`` runs as the module does; trained by a step, it runs alike in a new module."""
        torch.manual_seed(0)
        functions = {"tanh": torch.nn.GELU(approximate="tanh"), "silu": torch.nn.functional.silu}
        made = {"norm_first": norm_first, "bias": bias, "activation": functions.get(activation, activation)}
        made |= {"batch_first": True, "dropout": 0.0, "layer_norm_eps": 1e-3, "dtype": torch.float64}

        def module(**other):
            layer = torch.nn.TransformerEncoderLayer(12, 3, 11, **made | other)
            final = torch.nn.LayerNorm(12, eps=1e-3, dtype=torch.float64)
            return torch.nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False).eval()

        one = module()
        with torch.no_grad():
            for weight in one.parameters():
                weight += 0.1 * torch.randn(weight.shape)
        params, options = load_torch(one)
        assert options == {"num_heads": 3, "norm": "pre" if norm_first else "post", "activation": ours, "eps": 1e-3}
        same, said = load_torch(one.state_dict(), **options)
        assert said == options
        jax.tree.map(np.testing.assert_array_equal, same, params)
        x = np.random.default_rng(0).normal(size=(2, 5, 12))

        def run(params, x):
            hidden = ops.stack_encoder_blocks(x, params.blocks, **options)
            return ops.layer_norm(hidden, params.gamma, params.beta, options["eps"])

        def equal(module, params):
            with torch.no_grad():
                wanted = module(torch.tensor(x)).numpy()
            np.testing.assert_allclose(run(params, x), wanted, rtol=0, atol=1e-12)
            found = x
            for block in params.blocks:
                found = spec.encoder_block(found, jax.tree.map(np.asarray, block), **options)
            found = spec.layer_norm(found, np.asarray(params.gamma), np.asarray(params.beta), options["eps"])
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)

        def given(params, **other):
            new = module(**other)
            new.load_state_dict(to_torch(params))  # strict: nothing is missing, nothing left over
            return new

        with jax.enable_x64(True):
            equal(one, params)
            equal(given(params), params)
            block, layer = params.blocks[1], one.layers[1].state_dict()
            jax.tree.map(np.testing.assert_array_equal, load_torch(one.layers[1]), (block, options))
            for name, tensor in to_torch(block).items():
                assert torch.equal(tensor, layer.pop(name))
            assert not layer
            gradient = jax.grad(lambda params: (run(params, x) ** 3).sum())(params)
            trained = jax.tree.map(lambda weight, slope: weight - 0.01 * slope, params, gradient)
            assert max(map(float, jax.tree.leaves(jax.tree.map(lambda a: abs(a).max(), gradient)))) > 0.1
            equal(given(trained, bias=True), trained)  # the step gives biases to a network that had none

    def test_an_encoder_without_a_last_norm_and_in_half_precision(self, torch):
        layer = torch.nn.TransformerEncoderLayer(12, 3, 11, batch_first=True, dtype=torch.bfloat16)
        module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        params, options = load_torch(module)
        assert options == {"num_heads": 3, "norm": "post", "activation": "relu", "eps": 1e-5}
        assert params.gamma is None
        found = to_torch(jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), params))
        for name, tensor in module.state_dict().items():
            assert torch.equal(found.pop(name), tensor)
        assert not found

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}, {"vdim": 7}])
    def test_attention(self, torch, widths, bias):
        torch.manual_seed(0)
        made = {"batch_first": True, "bias": bias, "dtype": torch.float64, **widths}
        module = torch.nn.MultiheadAttention(12, 3, **made)
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=size) for size in ((2, 5, 12), (2, 7, widths.get("kdim", 12)))]
        arrays.append(rng.normal(size=(2, 7, widths.get("vdim", 12))))
        with torch.no_grad():
            if bias:
                module.in_proj_bias += 0.3
        params, options = load_torch(module)
        assert options == {"num_heads": 3}
        jax.tree.map(np.testing.assert_array_equal, load_torch(module.state_dict(), num_heads=3), (params, options))
        trained = jax.tree.map(lambda weight: weight + 0.1 * rng.normal(size=weight.shape), params)
        other = torch.nn.MultiheadAttention(12, 3, **made)
        other.load_state_dict(to_torch(trained))
        for attention, weights in ((module, params), (other, trained)):
            with torch.no_grad():
                wanted = attention(*map(torch.tensor, arrays))[0].numpy()
            found = spec.multi_head_attention(*arrays, weights, **options)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (lambda nn: nn.MultiheadAttention(6, 2, add_zero_attn=True), NotImplementedError, "add_zero_attn=True"),
            (lambda nn: nn.MultiheadAttention(6, 2, add_bias_kv=True), NotImplementedError, "add_bias_kv=True"),
            (lambda nn: nn.Linear(6, 6), TypeError, "module must be an nn.MultiheadAttention.* got Linear"),
            (lambda nn: nn.TransformerEncoderLayer(6, 2, 5, activation=nn.Tanh()), NotImplementedError,
             "activation 'tanh' is not supported"),
            (lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 5), 1, nn.LayerNorm(6, eps=1e-12)),
             NotImplementedError, "the layers and the last norm must have the same options"),
            (lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 5), 1, nn.RMSNorm(6)),
             NotImplementedError, "norms must be nn.LayerNorm with a weight, got RMSNorm"),
            (lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(6, 2, 5), 1), ValueError,
             "an encoder does not have: layers.0.multihead_attn"),
        ],
    )  # fmt: skip
    def test_refuses_a_module(self, torch, change, error, message):
        with pytest.raises(error, match=rf"^load_torch: (?s:.*){message}"):
            load_torch(change(torch.nn))

    def test_refuses_options_beside_a_module(self, torch):
        with pytest.raises(TypeError, match=r"^load_torch: a module has its own options; leave out norm$"):
            load_torch(torch.nn.MultiheadAttention(6, 2), norm="pre")

    @pytest.mark.smoke
    def test_a_state_dict_has_no_options(self):
        """Nothing is guessed: with the norms in the other place a block is off by more than 1."""
        layer = to_state_dict(spec.TransformerEncoderBlock(6, 3, 11, rng=0).params)
        with pytest.raises(TypeError, match=r"^load_torch: a state dict does not say num_heads, norm, activation\n"):
            load_torch(layer)
        with pytest.raises(TypeError, match=r'^load_torch: .* norm\n.*num_heads=8, norm="post", activation="relu"\)'):
            load_torch(layer, num_heads=3, activation="relu")
        for wrong in ({"num_heads": 4}, {"norm": "first"}, {"activation": "tanh"}, {"eps": -1.0}):
            with pytest.raises(ValueError, match=rf"^load_torch: .*{next(iter(wrong))}"):
                load_torch(layer, **{"num_heads": 3, "norm": "pre", "activation": "relu"} | wrong)
        attention = {"in_proj_weight": np.ones((18, 6)), "out_proj.weight": np.ones((6, 6))}
        with pytest.raises(TypeError, match=r"^load_torch: a state dict does not say num_heads\n.*num_heads=8\) with"):
            load_torch(attention)
        with pytest.raises(TypeError, match=r"^load_torch: an nn.MultiheadAttention has no norm; leave it out"):
            load_torch(attention, num_heads=3, norm="pre")

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("tensors", "error", "message"),
        [
            ("weights.pt", TypeError, "state_dict must map names to tensors, got str"),
            ({"in_proj_weight": np.ones((18, 6), int)}, TypeError,
             "in_proj_weight must be a floating tensor, got int64"),
            ({"in_proj_weight": np.ones((18, 6)), "bias_k": np.ones(6)}, NotImplementedError, "add_bias_kv=True"),
            ({"out_proj.weight": np.ones((6, 6))}, ValueError, "the state dict lacks in_proj_weight"),
            ({"in_proj_weight": np.ones((17, 6)), "out_proj.weight": np.ones((6, 6))}, ValueError, r"shape \(17, 6\)"),
            ({"layers.0.x": np.ones(6), "layers.7.x": np.ones(6)}, ValueError, "has layers 0, 7, expected 0 to 1"),
            ({"in_proj_weight": np.ones((18, 6)), "out_proj.weight": np.ones((6, 6)), "extra": np.ones(2)}, ValueError,
             "the state dict holds tensors that an encoder does not have: extra"),
        ],
    )  # fmt: skip
    def test_refuses(self, tensors, error, message):
        with pytest.raises(error, match=rf"^load_torch: (?s:.*){message}"):
            load_torch(tensors)

    @pytest.mark.smoke
    def test_refuses_to_give_what_no_module_has(self):
        params = random_params(BERT)
        block = params.blocks[0]
        wide = block._replace(W1=np.concatenate([block.W1] * 2, axis=1))
        fewer = block.attention._replace(W_K=block.attention.W_K[:, :2])
        for given, error, message in [
            (params, ValueError, "params have embeddings(?s:.*)save_bert"),
            (wide, ValueError, "W1 has F="),
            (block._replace(attention=fewer), ValueError, "W_Q has M=12 but W_K has M=2"),
            (fewer, ValueError, "W_Q has M=12 but W_K has M=2"),
            (block._replace(beta1=None), TypeError, "beta1 must be an array, got NoneType"),
            ({"W_Q": 1}, TypeError, "params must be EncoderParams, got dict"),
        ]:
            with pytest.raises(error, match=rf"^to_torch: {message}"):
                to_torch(given)
        with pytest.raises(TypeError, match=r"^to_torch: the weights are traced"):
            jax.eval_shape(to_torch, block)

    def test_where_torch_is_not_installed_it_says_how_to(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)  # as Python marks what it cannot find
        with pytest.raises(ModuleNotFoundError, match=r"^to_torch: the package torch .*; run: .* pip install torch$"):
            to_torch(random_params(BERT).blocks[0])


def to_state_dict(block):
    """Of an encoder block with no biases in its projections, in NumPy."""
    names = {"W1": "linear1.weight", "b1": "linear1.bias", "W2": "linear2.weight", "b2": "linear2.bias"}
    names |= {"gamma1": "norm1.weight", "beta1": "norm1.bias", "gamma2": "norm2.weight", "beta2": "norm2.bias"}
    tensors = {name: np.asarray(getattr(block, field)).T for field, name in names.items()}
    inputs = np.concatenate([W.T for W in block.attention[:3]])
    return tensors | {"self_attn.in_proj_weight": inputs, "self_attn.out_proj.weight": block.attention.W_O.T}


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
        np.testing.assert_array_equal(*(encode(IDS, p, config=config, mask=MASK, twin=spec) for p in (found, params)))

    @pytest.mark.smoke
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
        rewrite(path, change)
        with pytest.raises(ValueError, match=rf"^load: (?s:.*)({message})"):
            load(path)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"num_layers": 10**9}, "has num_layers=1000000000, but there are 3 layers"),
            ({"num_layers": True}, "has num_layers=True"),
            ({"vocab_size": 2**40}, "a size that is not an integer up to"),
            ({"d_model": 12.0}, "a size that is not an integer up to"),
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

        rewrite(path, change)
        with pytest.raises(ValueError, match=rf"^load: .*{message}") as caught:
            load(path)
        assert len(str(caught.value)) < 500

    @pytest.mark.smoke
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
