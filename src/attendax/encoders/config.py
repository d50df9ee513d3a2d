"""The configuration of an encoder: its sizes and options, and from them the shapes of all weights, and their places.

On a mesh, data parallel: the batch is divided and the weights are whole. Tensor parallel (Shoeybi et al. 2019): heads
and hidden units are divided, so that each device needs one sum after the attention and one after the network. Sequence
parallel: the tokens are also divided.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from attendax import checks
from attendax.params import EmbeddingParams, EncoderBlockParams, EncoderParams, MultiHeadParams
from attendax.rotary import Frequencies

NAME = "EncoderConfig"
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "none")
KINDS = ("layer", "rms")
GATED = {"geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}  # name -> what is activated beside the gate
COLUMNS = ("W_Q", "W_K", "W_V", "W1")  # weights (in, out) of which a mesh divides out, with the bias
ROWS = ("W_O", "W2")  # in is divided, and the bias added once
OF_COLUMNS = ("b_Q", "b_K", "b_V", "b1")
OF_KEYS = ("W_K", "W_V", "b_K", "b_V")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The sizes and options of an encoder; hashable, so it can be a static argument of ``jax.jit``.

    The defaults are BERT's: norm after each residual sum, exact (erf) GELU, learned positions, eps 1e-12. ModernBERT is
    another configuration; see ``load_modernbert``.

    Attributes:
        vocab_size, max_positions, num_token_types: rows of the tables; without token types, 0. No text is longer than
            ``max_positions``, whatever the positions are.
        d_model, num_heads, d_ff, num_layers: M, N, F and L.
        norm: "post" or "pre", the place of the norms (see ``ops.encoder_block``).
        activation: "relu", "gelu" (erf), "gelu_tanh" or "silu"; with a gate (``ops.gated_feed_forward``) "geglu",
            "geglu_tanh" or "swiglu".
        eps: added to the variance in all norms.
        norm_kind: "layer" or "rms". norm_bias: layer norms have a shift.
        bias: projections and feed-forward networks have biases.
        num_kv_heads: G, a divisor of N; None for N.
        positions: "learned", "sinusoidal", "rotary", "alibi" or "none".
        rope_theta: base of the rotary frequencies, or ``rotary.Frequencies`` such as YaRN's; one for all layers, or a
            tuple with one per layer.
        window: the number of tokens that a token sees on each side, None for all; one for all layers, or a tuple with
            one per layer (global and local layers in turn).
        dropout: rate on embeddings, attention weights and the result of each part of a layer. It applies if ``encode``
            gets a random key.
        embedding_norm: normalise the summed embeddings. first_norm: the attention of the first layer has a norm; may
            be False only for "pre". final_norm: a norm follows the last layer.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size or number is out of bounds, two of them do not fit each other, or an option is unknown.
    """

    vocab_size: int
    max_positions: int
    num_token_types: int
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    norm: str = "post"
    activation: str = "gelu"
    eps: float = 1e-12
    _: dataclasses.KW_ONLY
    norm_kind: str = "layer"
    norm_bias: bool = True
    bias: bool = True
    num_kv_heads: int | None = None
    positions: str = "learned"
    rope_theta: float | Frequencies | tuple[float | Frequencies, ...] = 10000.0
    window: int | tuple[int | None, ...] | None = None
    dropout: float = 0.0
    embedding_norm: bool = True
    first_norm: bool = True
    final_norm: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be built, here rather than in the middle of a run."""
        for size in ("vocab_size", "max_positions", "d_model", "num_heads", "d_ff"):
            checks.integer(NAME, size, getattr(self, size))
        for size in ("num_token_types", "num_layers"):
            checks.integer(NAME, size, getattr(self, size), minimum=0)
        width = checks.heads(NAME, self.d_model, self.num_heads)
        checks.one_of(NAME, "norm", self.norm, checks.NORMS)
        checks.one_of(NAME, "activation", self.activation, (*checks.ACTIVATIONS, *GATED))
        checks.number(NAME, "eps", self.eps, low=0)
        checks.one_of(NAME, "norm_kind", self.norm_kind, KINDS)
        checks.one_of(NAME, "positions", self.positions, POSITIONS)
        for name in ("norm_bias", "bias", "embedding_norm", "first_norm", "final_norm"):
            checks.boolean(NAME, name, getattr(self, name))
        checks.number(NAME, "dropout", self.dropout, low=0, high=1)
        if self.num_heads % self.key_heads:
            facts = f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.key_heads}."
            checks.fail(ValueError, NAME, facts)
        if self.positions == "rotary" and width % 2:
            checks.fail(ValueError, NAME, f"rotary positions need heads of an even width, got {width}.")
        if not self.first_norm and self.norm != "pre":
            checks.fail(ValueError, NAME, 'first_norm=False is for norm="pre".')
        for theta in self._given("rope_theta"):
            if not isinstance(theta, Frequencies):
                checks.number(NAME, "rope_theta", theta, low=0, closed=False)
            elif 2 * len(theta.numbers) > width:
                facts = f"rope_theta has frequencies of {2 * len(theta.numbers)} columns, but a head has {width}."
                checks.fail(ValueError, NAME, facts)
        for window in self._given("window"):
            if window is not None:
                checks.integer(NAME, "window", window, minimum=0)

    @property
    def key_heads(self) -> int:
        """G, the number of key and value heads."""
        return self.num_heads if self.num_kv_heads is None else checks.integer(NAME, "num_kv_heads", self.num_kv_heads)

    @property
    def thetas(self) -> tuple[float | Frequencies, ...]:
        """The base of the rotary frequencies of each layer, or its frequencies."""
        is_one = isinstance(self.rope_theta, Frequencies) or not isinstance(self.rope_theta, tuple)
        return self._given("rope_theta") * self.num_layers if is_one else self._given("rope_theta")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each layer, None for all tokens."""
        return self._given("window") if isinstance(self.window, tuple) else (self.window,) * self.num_layers

    def _given(self, name: str) -> tuple[Any, ...]:
        """The values of an option: one, or one for each layer."""
        value = getattr(self, name)
        if isinstance(value, Frequencies) or not isinstance(value, tuple):
            return (value,)
        if len(value) != self.num_layers:
            facts = f"{name} has {len(value)} values but there are num_layers={self.num_layers}."
            checks.fail(ValueError, NAME, facts)
        return value


def encoder_shapes(config: EncoderConfig, dtype: Any = np.float32) -> EncoderParams:
    """The weights that an encoder of this configuration has, as shapes: the one table behind ``init`` and loading.

    Returns:
        EncoderParams whose leaves are ``jax.ShapeDtypeStruct``; None for weights that the configuration does not have.
        ``W1`` of a gated network is (M, 2F).

    Example:
        >>> config = EncoderConfig(30522, 512, 2, d_model=384, num_heads=12, d_ff=1536, num_layers=6)
        >>> encoder_shapes(config).blocks[5].W1.shape
        (384, 1536)
    """

    def leaf(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    M, F = config.d_model, config.d_ff
    keys = M // config.num_heads * config.key_heads
    wide = 2 * F if config.activation in GATED else F
    shift = leaf(M) if config.norm_bias and config.norm_kind == "layer" else None
    biases = [leaf(n) if config.bias else None for n in (M, keys, keys, M, wide, M)]
    attention = MultiHeadParams(leaf(M, M), leaf(M, keys), leaf(M, keys), leaf(M, M), *biases[:4])
    network = leaf(M, wide), biases[4], leaf(F, M), biases[5]
    block = EncoderBlockParams(attention, *network, leaf(M), shift, leaf(M), shift)
    first = block if config.first_norm else block._replace(gamma1=None, beta1=None)
    embeddings = EmbeddingParams(
        token=leaf(config.vocab_size, M),
        position=leaf(config.max_positions, M) if config.positions == "learned" else None,
        token_type=leaf(config.num_token_types, M) if config.num_token_types else None,
        gamma=leaf(M) if config.embedding_norm else None,
        beta=shift if config.embedding_norm else None,
    )
    last = (leaf(M), shift) if config.final_norm else (None, None)
    return EncoderParams(embeddings, (first, *(block,) * (config.num_layers - 1))[: config.num_layers], *last)


def partition_specs(config: EncoderConfig, *, tensor: str | None = None, devices: int = 1) -> EncoderParams:
    """A partition spec for each weight of an encoder.

    Args:
        config: of the encoder.
        tensor: the mesh axis that divides heads and hidden units; None: weights are whole.
        devices: the number of devices of that axis.

    Returns:
        EncoderParams whose leaves are ``jax.sharding.PartitionSpec``; None for weights that do not exist.

    Raises:
        ValueError: the number of devices does not divide the heads or the hidden units.

    Example:
        >>> config = EncoderConfig(11, 7, 2, d_model=8, num_heads=4, d_ff=16, num_layers=1)
        >>> specs = partition_specs(config, tensor="model", devices=2)
        >>> specs.blocks[0].attention.W_Q == P(None, "model"), specs.blocks[0].W2 == P("model", None)
        (True, True)
    """
    for name, size in (("heads", config.num_heads), ("hidden units", config.d_ff)):
        if tensor is not None and size % devices:
            fact = f"{size} {name} are not a multiple of {devices} devices of {tensor!r}."
            checks.fail(ValueError, "partition_specs", fact)
    keys_are_whole = config.key_heads % devices != 0

    def spec(path: tuple, leaf: jax.ShapeDtypeStruct) -> P:
        name = path[-1].name
        if tensor is None or (keys_are_whole and name in OF_KEYS):
            return P()
        if name in COLUMNS:
            return P(None, tensor)
        if name in ROWS:
            return P(tensor, None)
        return P(tensor) if name in OF_COLUMNS else P()

    return jax.tree_util.tree_map_with_path(spec, encoder_shapes(config))


def token_spec(*, data: str | None = None, sequence: str | None = None) -> P:
    """The partition spec of token ids, masks and segments (B, T), and of hidden states (B, T, M).

    Args:
        data: the mesh axis that divides the batch.
        sequence: the mesh axis that divides the tokens.

    Example:
        >>> token_spec(data="data", sequence="seq") == P("data", "seq")
        True
    """
    return P(data, sequence)
