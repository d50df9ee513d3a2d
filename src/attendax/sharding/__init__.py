"""Attention over many devices, and what a compiled program sends between them."""

from .calls import attention as attention
from .calls import attention_on_mesh as attention_on_mesh
from .calls import on_mesh as on_mesh
from .compiled import Collective as Collective
from .compiled import bytes_received as bytes_received
from .compiled import collectives as collectives
from .compiled import flops as flops
from .order import positions as positions
from .order import restore as restore
from .order import zigzag as zigzag
from .strategy import Choice as Choice
from .strategy import Link as Link
from .strategy import explain as explain

__all__ = [
    "Choice",
    "Collective",
    "Link",
    "attention",
    "attention_on_mesh",
    "bytes_received",
    "collectives",
    "explain",
    "flops",
    "on_mesh",
    "positions",
    "restore",
    "zigzag",
]


def __dir__() -> list[str]:
    return __all__
