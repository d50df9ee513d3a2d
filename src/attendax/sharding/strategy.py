"""Ring, all-gather or Ulysses: the fastest by an estimate from the sizes and the speed of the link."""

import dataclasses
import math
from typing import Any, NamedTuple, cast

import jax
from jax import Array

from attendax.checks import fail
from attendax.kernels.operands import Operands
from attendax.masks import ArrayLike, Mask

STRATEGIES = ("ring", "all_gather", "ulysses")
Shaped = ArrayLike | jax.ShapeDtypeStruct


class Link(NamedTuple):
    """The speed of devices and of the link between them, from a datasheet, not measured.

    Attributes:
        bytes_per_second: bytes that a device receives in a second.
        latency: seconds before the first byte.
        flops_per_second: FLOPs of attention that a device computes in a second.
        gathered_bytes: largest size of the keys and values of all devices on one device.
    """

    bytes_per_second: float = 200e9
    latency: float = 10e-6
    flops_per_second: float = 400e12
    gathered_bytes: float = 2**30


LINK = Link()


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen strategy, and the cost of each possible one.

    Attributes:
        strategy: the chosen one.
        reason: the reason, in a sentence.
        bytes_received: bytes that a device receives in a forward, by strategy.
        bytes_with_gradient: the same in forward and gradient together.
        seconds: seconds that a forward waits for the ``Link``, by strategy.
    """

    strategy: str
    reason: str
    bytes_received: dict[str, int]
    bytes_with_gradient: dict[str, int]
    seconds: dict[str, float]

    def __str__(self) -> str:
        lines = [f"sharding.attention by {self.strategy!r}: {self.reason}"]
        for name, amount in self.bytes_received.items():
            both = self.bytes_with_gradient[name]
            lines.append(f"  {name:<11}{amount:,} bytes to a device; {both:,} with the gradient")
        return "\n".join(lines)


def explain(
    query: Shaped,
    key: Shaped,
    value: Shaped,
    *,
    devices: int,
    mask: Mask | Shaped | None = None,
    bias: Shaped | None = None,
    link: Link = LINK,
) -> Choice:
    """Say which strategy ``attention`` chooses, why, and what each strategy sends.

    Args:
        query, key, value, mask, bias: of all tokens, as in ``attendax.attention``; arrays or ``jax.ShapeDtypeStruct``.
        devices: number of devices that divide the tokens.
        link: speed of the devices [that of a large GPU, from its datasheet, by which ``attention`` chooses].

    Returns:
        ``Choice``. Print it.

    Raises:
        ValueError: tokens that the devices do not divide.

    Example:
        >>> import jax
        >>> x = jax.ShapeDtypeStruct((1, 8, 32768, 64), "bfloat16")
        >>> explain(x, x, x, devices=8).bytes_received["ring"]
        58720256
    """
    for name, x in (("queries", query), ("keys", key)):
        if x.shape[-2] % devices:
            fail(ValueError, "sharding.explain", f"{x.shape[-2]} {name} are not a multiple of {devices} devices.")

    def part(x: Any) -> Any:  # of the shape of all devices, (..., N, T, D) or (T, D)
        shape = (1,) * (3 - len(x.shape)) + tuple(x.shape)
        return jax.ShapeDtypeStruct((*shape[:-2], shape[-2] // devices, shape[-1]), x.dtype)

    of_query, of_key, of_value = map(part, (query, key, value))
    if mask is not None:
        rank = max(3, len(query.shape))
        mask = (mask if isinstance(mask, Mask) else Mask("dense", (mask,))).of_rank(rank)
    return choose(Operands(of_query, of_key, of_value, cast(Any, bias), None, mask, None), devices, link)


def choose(operands: Operands, count: int, link: Link = LINK) -> Choice:
    """The strategy for the operands that one of ``count`` devices holds."""
    received, hops = bytes_received(operands, count), {"ring": count - 1, "all_gather": 1, "ulysses": 4}
    query, key = operands.query, operands.key
    pairs = query.size // query.shape[-1] * key.shape[-2]
    products = 2 * pairs * (query.shape[-1] + operands.value.shape[-1]) / link.flops_per_second  # of one hop
    seconds = {}
    for name, amount in received.items():
        wait = hops[name] * link.latency + amount / link.bytes_per_second
        if name == "ring":  # keys travel while products run
            wait = (count - 1) * max(
                link.latency, link.latency + amount / (count - 1 or 1) / link.bytes_per_second - products
            )
        seconds[name] = wait
    gathered = count * (_bytes(key) + _bytes(operands.value))
    fits = [name for name in seconds if name != "all_gather" or gathered <= link.gathered_bytes]
    best = min(fits, key=lambda name: (seconds[name], STRATEGIES.index(name)))
    told = ", ".join(f"{name} {1e6 * wait:.1f} us" for name, wait in seconds.items())
    both = {name: amount + _of_gradient(name, amount, operands, count) for name, amount in received.items()}
    return Choice(best, f"it waits least for the link ({told})", received, both, seconds)


def bytes_received(operands: Operands, count: int) -> dict[str, int]:
    """Bytes of queries, keys, values and results that a device receives in a forward, by strategy that is possible."""
    query, key, value, bias = operands[:4]
    keys = _bytes(key) + _bytes(value)
    found = {"ring": (count - 1) * keys, "all_gather": (count - 1) * keys}
    N, G = query.shape[-3], max(1, key.shape[-3])
    if N % count == 0 and not _rows_for_all_heads(bias, operands.mask, N):
        repeats = math.lcm(G, count) // G
        out = query.size // query.shape[-1] * value.shape[-1] * operands.compute_dtype().itemsize
        found["ulysses"] = (_bytes(query) + repeats * keys + out) * (count - 1) // count
    return found


def _of_gradient(name: str, forward: int, operands: Operands, count: int) -> int:
    """Bytes that the gradient receives: all keys again, and gradients of keys and values, sent in the compute dtype."""
    if name == "ulysses":
        return forward
    wide = (operands.key.size + operands.value.size) * operands.compute_dtype().itemsize
    return forward + int(wide) * (count if name == "ring" else count - 1)


def _bytes(x: Array) -> int:
    return int(x.size) * x.dtype.itemsize


def _rows_for_all_heads(bias: Array | None, mask: Mask | None, N: int) -> bool:
    """Tell whether a bias or dense mask has to come whole to every device: one row of it serves all heads."""
    dense = [part.arrays[0] for part in mask.parts() if part.kind == "dense"] if mask is not None else []
    found = dense if bias is None else [bias, *dense]
    return any(x.shape[-3] == 1 < N and x.shape[-2] > 1 for x in found)
