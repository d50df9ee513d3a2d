"""Small models with the bugs of public threads, each written anew, and sound ones, which nothing may accuse.

A model is made by a function without arguments, so that a test pays for the one that it judges.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A model: how it is made, what is said of it, the law that must find it first, and the thread it is from."""

    name: str
    make: Callable[[], Any]
    said: dict[str, Any]
    law: str = ""
    source: str = ""
