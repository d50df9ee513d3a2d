"""Attention over many devices."""

from .calls import attention as attention
from .calls import attention_on_mesh as attention_on_mesh
from .calls import on_mesh as on_mesh
from .order import positions as positions
from .order import restore as restore
from .order import zigzag as zigzag
from .strategy import Choice as Choice
from .strategy import Link as Link
from .strategy import explain as explain

__all__ = ["Choice", "Link", "attention", "attention_on_mesh", "explain", "on_mesh", "positions", "restore", "zigzag"]


def __dir__() -> list[str]:
    return __all__
