"""The shared library of the CPU's kernel: whether it is there, and for which instruction set.

It is built when the package is installed, where there is a C++ compiler (``build.py``), or comes in the wheel. Without it
everything works in tiles, only slower. ``ATTENDAX_NATIVE=0`` turns it off; ``ATTENDAX_ISA`` names an instruction set.
"""

import ctypes
import functools
import os
import pathlib
import sys
from typing import NamedTuple

import jax

NAME = "libattendax.dylib" if sys.platform == "darwin" else "libattendax.so"
TARGETS = ("attendax_forward", "attendax_backward")


class Library(NamedTuple):
    """The instruction set of the loaded library, or else why there is none."""

    isa: str
    why_not: str


@functools.cache
def library() -> Library:
    """Load the library and register its handlers, once in a process."""
    if os.environ.get("ATTENDAX_NATIVE") == "0":
        return Library("", "turned off by ATTENDAX_NATIVE=0")
    path = pathlib.Path(__file__).with_name(NAME)
    if not path.exists():
        return Library("", "no library was built (when attendax was installed there was no C++ compiler)")
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.attendax_isa.restype = ctypes.c_char_p
        isa = loaded.attendax_isa().decode()
        if not isa:
            return Library("", "this processor has none of the instruction sets that the library is for")
        for target in TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(loaded, target)), platform="cpu")
    except (OSError, AttributeError) as error:
        return Library("", f"the library does not load: {error}")
    return Library(isa, "")


def status() -> str:
    """One line: whether the library is there, for which instruction set, or why not."""
    isa, why_not = library()
    return f"native kernel: {isa}" if isa else f"native kernel: not used: {why_not}"
