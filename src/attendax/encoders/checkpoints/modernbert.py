"""A ModernBERT directory (Warner et al. 2024) as ``EncoderParams``, and back."""

import os
from collections.abc import Callable
from typing import Any

from attendax import rotary
from attendax.params import EncoderParams

from ..config import EncoderConfig
from .files import Settings, Source
from .published import Kind, read_model, write_model

GLOBAL, LOCAL = "full_attention", "sliding_attention"
LENGTHS = {"factor": "factor", "original_max_position_embeddings": "trained"}
OF_YARN, OF_LLAMA = ("beta_fast", "beta_slow", "attention_factor", "truncate"), ("low_freq_factor", "high_freq_factor")
SCALED: dict[str, tuple[Callable[..., rotary.Frequencies], dict[str, str]]] = {  # rope_type: names of theirs and ours
    "linear": (rotary.interpolated, {"factor": "factor"}),
    "yarn": (rotary.yarn, LENGTHS | {name: name for name in OF_YARN}),
    "llama3": (rotary.llama3, LENGTHS | {name: name for name in OF_LLAMA}),
}
THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}
CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
}
ACTIVATIONS = {"gelu": "geglu", "gelu_new": "geglu_tanh", "gelu_pytorch_tanh": "geglu_tanh", "silu": "swiglu"}
EMBEDDINGS = {"token": "tok_embeddings.weight", "gamma": "norm.weight", "beta": "norm.bias"}
BLOCK = {  # W_Q, W_K and W_V are the thirds of one matrix
    "W_O": "attn.Wo.weight",
    "b_O": "attn.Wo.bias",
    "W1": "mlp.Wi.weight",
    "b1": "mlp.Wi.bias",
    "W2": "mlp.Wo.weight",
    "b2": "mlp.Wo.bias",
    "gamma1": "attn_norm.weight",
    "beta1": "attn_norm.bias",
    "gamma2": "mlp_norm.weight",
    "beta2": "mlp_norm.bias",
}
UNUSED_PREFIXES = ("head.", "decoder.", "classifier.")  # of the usual tasks


def load_modernbert(directory: str | os.PathLike[str]) -> tuple[EncoderParams, EncoderConfig]:
    """Read the encoder of a ModernBERT checkpoint: rotary positions, GeGLU, pre-norm, global and local layers in turn.

    Tensor names may begin with ``model.``, as in checkpoints saved with a head. Matrices are stored (out, in) there and
    (in, out) here: they are transposed. Half-precision weights are widened to float32, exactly. For
    extended contexts the types "linear", "yarn" and "llama3" of rotary frequencies are supported.

    Args:
        directory: holds ``config.json`` and ``model.safetensors``.

    Returns:
        ``(params, config)``. The leaves of ``params`` are NumPy arrays; ``jax.device_put(params)`` moves them once.

    Raises:
        FileNotFoundError: the directory or one of its two files is missing.
        ValueError: a file is corrupt, a value in ``config.json`` has the wrong type, or a tensor is missing,
            unexpected, or does not have the shape in ``config.json``.
        NotImplementedError: the kind of model, activation or rotary encoding is not supported, or only some layers have
            biases.
        ModuleNotFoundError: ``safetensors`` is not installed.
    """
    return read_model("load_modernbert", KIND, directory)


def save_modernbert(
    directory: str | os.PathLike[str],
    params: EncoderParams,
    config: EncoderConfig,
    *,
    like: str | os.PathLike[str] | None = None,
) -> None:
    """Write a ModernBERT checkpoint, as ``load_modernbert`` and transformers read it.

    Arguments and errors are those of ``save_bert``. Global and local layers may stand in any order. All windows have
    one width. Global layers share one base of rotary frequencies, and local layers another.

    Args:
        directory: created if it is missing.
        params: the weights, NumPy or JAX. The tensors get the widest of their dtypes.
        config: the sizes and options of ``params``.
        like: a ModernBERT directory of the same configuration. The new files then also have its heads, its other
            settings and its prefix of names.

    Raises:
        TypeError, ValueError, NotImplementedError, OSError, ModuleNotFoundError: as ``save_bert``.
    """
    write_model("save_modernbert", KIND, directory, params, config, like)


def _config(settings: Settings) -> EncoderConfig:
    sizes = settings.sizes(CONFIG_KEYS)
    biases = {settings.flag(key, False) for key in ("attention_bias", "mlp_bias")}
    if len(biases) == 2:
        facts = "config.json has attention_bias and mlp_bias that differ, supported are both or neither"
        raise NotImplementedError(f"{settings.function}: {facts}")
    kinds = _layer_kinds(settings, sizes["num_layers"])
    thetas = {kind: _theta(settings, kind, sizes["d_model"] // sizes["num_heads"]) for kind in THETAS}
    reach = settings.size("local_attention") // 2 if "local_attention" in settings.content else 64
    if sizes["d_model"] // sizes["num_heads"] % 2:
        settings.refuse("hidden_size", sizes["d_model"], "heads of an even width")
    return EncoderConfig(
        **sizes,
        num_token_types=0,
        norm="pre",
        activation=settings.activation("hidden_activation", ACTIVATIONS),
        eps=settings.number("norm_eps", 1e-5, 1),
        norm_bias=settings.flag("norm_bias", False),
        bias=biases.pop(),
        positions="rotary",
        rope_theta=tuple(thetas[kind] for kind in kinds),
        window=tuple(reach if kind == LOCAL else None for kind in kinds),
        first_norm=False,
        final_norm=True,
    )


def _settings(config: EncoderConfig) -> dict[str, Any]:
    """Settings that ``_config`` reads back as ``config``; without any it is not ModernBERT's. Older files say less."""
    kinds = [GLOBAL if window is None else LOCAL for window in config.windows]
    pairs = zip(kinds, config.thetas, strict=True)  # frequencies are not said, and so refused
    thetas = {kind: 10000.0 if isinstance(theta, rotary.Frequencies) else float(theta) for kind, theta in pairs}
    thetas = {kind: thetas.get(kind, default) for kind, (_, default) in THETAS.items()}
    reach = next((int(window) for window in config.windows if window is not None), 64)
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    settings = {
        "hidden_activation": activations.get(config.activation, config.activation),
        "norm_eps": float(config.eps),
        "norm_bias": bool(config.norm_bias),
        "attention_bias": bool(config.bias),
        "mlp_bias": bool(config.bias),
        "local_attention": max(1, 2 * reach),
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
    }
    settings |= {THETAS[kind][0]: theta for kind, theta in thetas.items()}
    every = kinds[1:].index(GLOBAL) + 1 if GLOBAL in kinds[1:] else max(1, len(kinds))
    if kinds == _in_turn(every, len(kinds)):
        settings["global_attn_every_n_layers"] = every
    return settings


def _in_turn(every: int, num_layers: int) -> list[str]:
    return [LOCAL if number % every else GLOBAL for number in range(num_layers)]


def _layer_kinds(settings: Settings, num_layers: int) -> list[str]:
    """Layers that are global: said one by one, or, in older files, every so many from the first."""
    kinds = settings.content.get("layer_types")
    if kinds is None:
        key = "global_attn_every_n_layers"
        every = settings.size(key) if key in settings.content else 3
        return _in_turn(every, num_layers)
    if type(kinds) is not list or len(kinds) != num_layers or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        settings.refuse("layer_types", kinds, f"{num_layers} times {GLOBAL!r} or {LOCAL!r}")
    return kinds


def _theta(settings: Settings, kind: str, width: int) -> float | rotary.Frequencies:
    """The base of the rotary frequencies, where newer files have it or where older ones do; or those of a long context.

    ``width`` is that of a head.
    """
    key, default = THETAS[kind]
    every = settings.content.get("rope_parameters")
    if every is None:
        settings.only(rope_scaling=None)
        theta = settings.number(key, default, 1e12)
    else:
        rope = every.get(kind) if isinstance(every, dict) else None
        if not isinstance(rope, dict):
            settings.refuse("rope_parameters", every, f"an object with {GLOBAL!r} and {LOCAL!r}")
        theta = settings.number("rope_theta", default, 1e12, rope)
        if theta and rope.get("rope_type") in SCALED:
            return _scaled(settings, rope, width, theta)
        Settings(settings.function, rope).only(rope_type="default")
    if theta == 0:
        settings.refuse(key, theta, "a number above 0")
    return theta


def _scaled(settings: Settings, rope: dict[str, Any], width: int, theta: float) -> rotary.Frequencies:
    """The frequencies of a model that was made for longer texts; options that the file lacks have their defaults."""
    function, names = SCALED[rope["rope_type"]]
    given = {ours: rope[theirs] for theirs, ours in names.items() if rope.get(theirs) is not None}
    Settings(settings.function, rope).only(mscale=None, mscale_all_dim=None)
    try:
        return function(width, **given, theta=theta)
    except (TypeError, ValueError) as error:
        facts = str(error).splitlines()[0][:200]
        raise ValueError(f"{settings.function}: config.json has rope_parameters that are wrong: {facts}") from None


def _source(path: tuple[Any, ...], shapes: EncoderParams) -> Source:
    """The tensor of the leaf at ``path``, such as ``.blocks[3].attention.W_Q``; matrices are stored (out, in)."""
    field = path[-1].name
    if path[0].name == "embeddings":
        return Source(f"embeddings.{EMBEDDINGS[field]}", getattr(shapes.embeddings, field).shape)
    if path[0].name != "blocks":
        return Source("final_norm.weight" if field == "gamma" else "final_norm.bias", shapes.gamma.shape)
    block, number = shapes.blocks[path[1].idx], path[1].idx
    shape = getattr(block.attention if field in block.attention._fields else block, field).shape
    turned = field.startswith("W")
    if field[2:] in ("Q", "K", "V"):
        third, M = "QKV".index(field[2:]), shape[0]
        name = f"layers.{number}.attn.Wqkv.{'weight' if turned else 'bias'}"
        return Source(name, (3 * M, M) if turned else (3 * M,), slice(third * M, (third + 1) * M), turned)
    return Source(f"layers.{number}.{BLOCK[field]}", shape[::-1] if turned else shape, turned=turned)


KIND = Kind(
    name="ModernBERT",
    model_type="modernbert",
    sizes=CONFIG_KEYS,
    prefix="model.",
    layers="layers.",
    unused=lambda name: name.startswith(UNUSED_PREFIXES),
    config=_config,
    settings=_settings,
    defaults={"architectures": ["ModernBertModel"], "pad_token_id": None},
    dropouts=("attention_dropout", "embedding_dropout", "mlp_dropout"),
    source=_source,
)
