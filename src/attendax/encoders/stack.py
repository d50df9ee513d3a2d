"""Equal layers stacked into one tree, for ``lax.scan``: compiled once, however deep the encoder is."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attendax import checks
from attendax.params import EncoderBlockParams, EncoderParams

from .config import EncoderConfig


class LayerStack(NamedTuple):
    """Layers that are alike, as one tree: every leaf has a leading axis, one entry for each time the layers repeat.

    ``layers`` are those of one period: of global and local layers in turn, one of each.
    """

    layers: tuple[EncoderBlockParams, ...]

    @property
    def repeats(self) -> int:
        """The number of times that the period of layers repeats."""
        return int(jax.tree.leaves(self.layers)[0].shape[0])


def stack_layers(params: EncoderParams, config: EncoderConfig) -> EncoderParams:
    """The weights for a scan: layers that are alike become one tree with a leading axis, compiled once.

    Use it for deep encoders: with a loop, compile time grows with the number of layers. Layers that do not repeat (a
    first layer without a norm, a remainder) stay as they are. ``docs/train.md`` has the times.

    Args:
        params: the weights, layer by layer.
        config: the sizes and options of ``params``.

    Returns:
        ``EncoderParams``, which ``encode`` takes as well; its gradient has the same form.

    Raises:
        ValueError: the number of layers is not that of ``config``.

    Example:
        >>> from attendax.encoders import init_encoder
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=4, window=(None, 1, None, 1))
        >>> (stack,) = stack_layers(init_encoder(jax.random.key(0), config), config).blocks
        >>> len(stack.layers), stack.repeats
        (2, 2)
    """
    if any(isinstance(part, LayerStack) for part in params.blocks):
        return params
    if len(params.blocks) != config.num_layers:
        facts = f"params has {len(params.blocks)} blocks but config has num_layers={config.num_layers}."
        checks.fail(ValueError, "stack_layers", facts)
    start = 0 if config.first_norm else 1
    settings = list(zip(config.windows, config.thetas, strict=True))[start:]
    fitting = (p for p in range(1, len(settings) + 1) if settings == (settings[:p] * len(settings))[: len(settings)])
    period = next(fitting, 1)
    repeats = len(settings) // period
    if repeats < 2:
        return params
    blocks: Any = params.blocks
    end = start + period * repeats
    turns = (blocks[start + k : end : period] for k in range(period))
    stack: Any = LayerStack(tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *turn) for turn in turns))
    return params._replace(blocks=(*blocks[:start], stack, *blocks[end:]))


def unstacked(blocks: Any) -> list[Any]:
    """The layers one by one."""
    parts = ([part] if not isinstance(part, LayerStack) else _turns(part) for part in blocks)
    return [block for part in parts for block in part]


def _turns(stack: LayerStack) -> list[Any]:
    return [jax.tree.map(lambda leaf, r=r: leaf[r], block) for r in range(stack.repeats) for block in stack.layers]
