"""The contestants for layers and encoders: each on the same weights and the same inputs, as NumPy arrays.

A builder returns the call that is timed, and how its result is read as a list of NumPy arrays in the common layout: the
hidden states; or the output, the gradient of x and those of the weights in the order of ``params``, matrices (in, out).
One that cannot take part raises ``Unable``. Torch's modules are eager, in inference mode where nothing is trained.
"""

import contextlib
import functools
import io
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attendax import ops
from attendax.encoders import encode
from attendax.encoders.embedding import embed
from attendax.encoders.sentences import load_sentence_encoder
from attendax.params import EncoderBlockParams, MultiHeadParams
from harness import Unable, threads

Built = tuple[Callable[[], Any], Callable[[Any], list[np.ndarray]], int | None]
EPS = 1e-5  # of the block's layer norms: torch's own


def needs(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise Unable(f"{package} is not installed")


def torch_on_all_threads() -> Any:
    needs("torch")
    import torch

    torch.set_num_threads(threads())
    return torch


def compiled(f: Callable, *arrays: Any) -> tuple[Callable, int]:
    program = jax.jit(f).lower(*arrays).compile()
    return lambda: jax.block_until_ready(program(*arrays)), program.memory_analysis().temp_size_in_bytes


class Checkpoint:
    """A checkpoint as each library loads it, once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours = load_sentence_encoder(directory)

    @functools.cached_property
    def torch_model(self) -> Any:
        torch_on_all_threads()
        needs("transformers")
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        return AutoModel.from_pretrained(self.directory).eval()

    @functools.cached_property
    def onnx_session(self) -> Any:
        needs("onnxruntime", "onnx", "onnxscript")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads(), 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "encoder.onnx"
            _export(self.torch_model, path)
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _export(model: Any, path: Path) -> None:
    """The encoder as ONNX, any batch and length; what the exporter prints is not a result."""
    import torch

    class HiddenStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    examples = tuple(torch.ones(2, 3, dtype=torch.long) for _ in range(2))  # one tensor twice would become one input
    most = model.config.max_position_embeddings
    axes = {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("length", min=2, max=most)}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            HiddenStates(),
            examples,
            path,
            dynamo=True,
            external_data=False,
            input_names=["ids", "mask"],
            output_names=["hidden"],
            dynamic_shapes={"ids": axes, "mask": axes},
        )


def our_encoder(checkpoint: Checkpoint, ids: np.ndarray, mask: np.ndarray) -> Built:
    encoder = checkpoint.ours
    run = functools.partial(encode, config=encoder.config)
    call, temporaries = compiled(
        lambda params, ids, mask: run(ids, params, mask=mask), encoder.params, ids.astype(np.int32), mask
    )
    return call, lambda hidden: [np.asarray(hidden)], temporaries


def torch_encoder(checkpoint: Checkpoint, ids: np.ndarray, mask: np.ndarray) -> Built:
    torch, model = torch_on_all_threads(), checkpoint.torch_model
    given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}

    def call():
        with torch.inference_mode():
            return model(**given).last_hidden_state

    return call, lambda hidden: [hidden.numpy()], None


def onnx_encoder(checkpoint: Checkpoint, ids: np.ndarray, mask: np.ndarray) -> Built:
    session, given = checkpoint.onnx_session, {"ids": ids, "mask": mask.astype(np.int64)}
    return lambda: session.run(None, given), list, None


def our_embedding(checkpoint: Checkpoint, texts: list[str]) -> Built:
    return lambda: [np.stack([found.vector for found in embed(checkpoint.ours, texts)])], list, None


def sentence_transformers(checkpoint: Checkpoint, texts: list[str]) -> Built:
    torch_on_all_threads()
    needs("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(checkpoint.directory), device="cpu")
    return lambda: [model.encode(texts)], list, None  # its own batches: 32, sorted by length


def our_layer(forward: Callable, params: Any, x: np.ndarray, cotangent: np.ndarray, training: bool) -> Built:
    def step(params, x, cotangent):
        output, pull = jax.vjp(forward, params, x)
        grad_params, grad_x = pull(cotangent)
        return output, grad_x, grad_params

    arrays = jax.device_put((params, x))
    call, temporaries = compiled(step, *arrays, jax.device_put(cotangent)) if training else compiled(forward, *arrays)
    return call, lambda results: [np.asarray(one) for one in jax.tree.leaves(results)], temporaries


def torch_layer(layer: Any, forward: Callable, order: Callable, x: Any, cotangent: Any, training: bool) -> Built:
    torch = torch_on_all_threads()
    layer.train(training)
    x, cotangent = torch.from_numpy(x).requires_grad_(training), torch.from_numpy(cotangent)
    named = dict(layer.named_parameters())

    def call():
        if not training:
            with torch.inference_mode():
                return [forward(x)]
        output = forward(x)
        return [output, *torch.autograd.grad(output, [x, *named.values()], cotangent)]

    def to_numpy(results):
        output, *grads = [one.detach().numpy() for one in results]
        return [output, grads[0], *order(dict(zip(named, grads[1:], strict=True)))] if training else [output]

    return call, to_numpy, None


def our_block(params: EncoderBlockParams, heads: int, *rest: Any) -> Built:
    options = {"num_heads": heads, "norm": "post", "activation": "gelu", "eps": EPS}
    return our_layer(lambda params, x: ops.encoder_block(x, params, **options), params, *rest)


def our_multi_head(params: MultiHeadParams, heads: int, *rest: Any) -> Built:
    return our_layer(lambda p, x: ops.multi_head_attention(x, x, x, p, num_heads=heads), params, *rest)


def torch_block(params: EncoderBlockParams, heads: int, *rest: Any) -> Built:
    torch, (width, hidden) = torch_on_all_threads(), params.W1.shape
    options = {"activation": "gelu", "layer_norm_eps": EPS, "dropout": 0.0, "batch_first": True}
    layer = torch.nn.TransformerEncoderLayer(width, heads, hidden, **options)
    names = ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    names += ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]
    _load(torch, layer, _joined(params.attention, "self_attn.") | dict(zip(names, params[1:], strict=True)))

    def order(grads):
        plain = [grads[name].T if grads[name].ndim == 2 else grads[name] for name in names]
        return [*_separated(grads, "self_attn."), *plain]

    return torch_layer(layer, layer, order, *rest)


def torch_multi_head(params: MultiHeadParams, heads: int, *rest: Any) -> Built:
    torch = torch_on_all_threads()
    layer = torch.nn.MultiheadAttention(len(params.W_Q), heads, batch_first=True)
    _load(torch, layer, _joined(params, ""))
    forward = lambda x: layer(x, x, x, need_weights=False)[0]  # noqa: E731
    return torch_layer(layer, forward, lambda grads: _separated(grads, ""), *rest)


def _load(torch: Any, layer: Any, state: dict[str, np.ndarray]) -> None:
    """Load every weight by name, strictly; matrices are (out, in) there."""
    turned = {name: np.ascontiguousarray(x.T if x.ndim == 2 else x) for name, x in state.items()}
    layer.load_state_dict({name: torch.from_numpy(x) for name, x in turned.items()})


def _joined(params: MultiHeadParams, prefix: str) -> dict[str, np.ndarray]:
    """Our weights of attention under torch's names, still (in, out)."""
    return {
        f"{prefix}in_proj_weight": np.concatenate(params[:3], axis=1),
        f"{prefix}in_proj_bias": np.concatenate(params[4:7]),
        f"{prefix}out_proj.weight": params.W_O,
        f"{prefix}out_proj.bias": params.b_O,
    }


def _separated(grads: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    """The transpose of ``_joined``, as a list in the order of ``MultiHeadParams``."""
    matrices = np.split(grads[f"{prefix}in_proj_weight"].T, 3, axis=1)
    biases = np.split(grads[f"{prefix}in_proj_bias"], 3)
    return [*matrices, grads[f"{prefix}out_proj.weight"].T, *biases, grads[f"{prefix}out_proj.bias"]]
