"""What a cheat is: the text of a module whose ``attention`` is wrong, and what the kit has to say of it."""

import shutil
from pathlib import Path
from typing import NamedTuple

import right_attention

PLAIN = ("--only", "plain")  # for what is wrong in every case: where two cases of all are red, so are all
MEASURED = "measured on an earlier version of this kit"
PRELUDE = '''\
import ctypes, gc, json, os, resource, signal, sys, threading, time
import numpy as np
from right_attention import attend as right


def instead(out, found):
    """Another ``out`` in the place of that of a result, which may have an lse beside it."""
    return (out, *found[1:]) if isinstance(found, tuple) else out


def wrong(query, key, value, **options):
    """Zeros of the right shape, beside a right lse."""
    found = right(query, key, value, **options)
    return instead(0 * (found[0] if isinstance(found, tuple) else found), found)
'''


class Cheat(NamedTuple):
    """A candidate that is wrong as somebody's was.

    Attributes:
        name: what it does, in a few words.
        why: why that is wrong, and which check it is made for.
        met: where: a thread as "owner/repository#number", a paper or a post, or ``MEASURED``.
        found: what the report must have: the verdict of some case, or a part of the last line.
        text: the module after ``PRELUDE``; where it has a ``backward``, the gradients are asked for.
        arguments: of the command, beside the name.
        quick: whether it is among those that are tried at each run of the tests.
    """

    name: str
    why: str
    met: str
    found: tuple[str, ...]
    text: str
    arguments: tuple[str, ...] = ()
    quick: bool = False

    @property
    def module(self) -> str:
        """Its name as that of a module."""
        return "".join(c if c.isalnum() else "_" for c in self.name.lower())

    def write(self, folder: Path) -> list[str]:
        """Write the module, and what it imports; the arguments of the command that judge it."""
        shutil.copy(right_attention.__file__, folder)
        carried = "\nattention.backward = backward\n" * ("\ndef backward(" in self.text)
        (folder / f"{self.module}.py").write_text(f"{PRELUDE}\n{self.text}{carried}")
        (folder / "law.toml").write_text('[called]\nlayout = "BNTD"\n')  # so it is judged if no formula fits
        for arrays in ("jax", "torch", "numpy"):
            (folder / f"{arrays}.toml").write_text(f'[called]\narrays = "{arrays}"\nlayout = "BNTD"\n')
        law = () if "--contract" in self.arguments else ("--contract", "law.toml")
        return [f"{self.module}:attention", *law, *self.arguments]
