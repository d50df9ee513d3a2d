"""How an encoder lies on a mesh: a partition spec for each weight, and for token ids.

Data parallel: the batch is divided and the weights are whole. Tensor parallel (Shoeybi et al. 2019): heads and hidden
units are divided, so that each device needs one sum after the attention and one after the network. Sequence parallel:
the tokens are divided, too.
"""

import jax
from jax.sharding import PartitionSpec as P

from attendax.checks import fail
from attendax.params import EncoderParams

from .config import EncoderConfig, encoder_shapes

COLUMNS = ("W_Q", "W_K", "W_V", "W1")  # (in, out): out is divided, with its bias
ROWS = ("W_O", "W2")  # in is divided; the bias is added once
OF_COLUMNS = ("b_Q", "b_K", "b_V", "b1")
OF_KEYS = ("W_K", "W_V", "b_K", "b_V")


def partition_specs(config: EncoderConfig, *, tensor: str | None = None, devices: int = 1) -> EncoderParams:
    """A partition spec for each weight of an encoder.

    Args:
        config: of the encoder.
        tensor: the mesh axis that divides heads and hidden units; None: weights are whole.
        devices: how many devices that axis has.

    Returns:
        EncoderParams whose leaves are ``jax.sharding.PartitionSpec``; None where there is no such weight.

    Raises:
        ValueError: heads or hidden units that the devices do not divide.

    Example:
        >>> config = EncoderConfig(11, 7, 2, d_model=8, num_heads=4, d_ff=16, num_layers=1)
        >>> specs = partition_specs(config, tensor="model", devices=2)
        >>> specs.blocks[0].attention.W_Q == P(None, "model"), specs.blocks[0].W2 == P("model", None)
        (True, True)
    """
    for name, size in (("heads", config.num_heads), ("hidden units", config.d_ff)):
        if tensor is not None and size % devices:
            fail(ValueError, "partition_specs", f"{size} {name} are no multiple of {devices} devices of {tensor!r}.")
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
