"""The shared library of the CPU's kernel: whether it is there, and for which instruction set.

It is built when the package is installed, if a C++ compiler is found (``build.py``), or comes in the wheel. Without
it everything works in tiles, only slower. ``ATTENDAX_NATIVE=0`` turns it off; ``ATTENDAX_ISA`` names an instruction
set.
"""

import ctypes
import functools
import os
import pathlib
import re
import sys
from typing import NamedTuple

import jax
import jaxlib

NAME = "libattendax.dylib" if sys.platform == "darwin" else "libattendax.so"
REASON = "why_not.txt"  # left by build.py in its place
FOLDER = pathlib.Path(__file__).parent
TARGETS = tuple(f"attendax_{name}" for name in ("forward", "backward", "tangent", "hvp", "project"))
VERSION = 6  # of what program.py writes: attendax_version in csrc/ffi.cc
# A jaxlib that refuses the version of a handler (csrc/xla_ffi.h) loses its whole CPU backend: none is tried that came
# later than what could be foreseen.
OLDEST, TOO_NEW = (0, 10, 2), (0, 13)


class Library(NamedTuple):
    """The instruction set of the loaded library, or else why there is none."""

    isa: str
    why_not: str


@functools.cache
def library() -> Library:
    """Load the library and register its handlers, once in a process."""
    if reason := _reason():
        return Library("", reason)
    try:
        loaded = ctypes.CDLL(str(FOLDER / NAME))
        if not hasattr(loaded, "attendax_version") or loaded.attendax_version() != VERSION:
            return Library("", "the library is of another version than attendax: build it anew")
        loaded.attendax_isa.restype = ctypes.c_char_p
        isa = loaded.attendax_isa().decode()
        if not isa:
            return Library("", _no_set())
        for target in TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(loaded, target)), platform="cpu")
    except (OSError, AttributeError, jax.errors.JaxRuntimeError) as error:  # the last: a second copy of attendax
        return Library("", f"the library does not load: {error}")
    return Library(isa, "")


def _reason() -> str:
    """The reason why the library is not even loaded, or nothing."""
    if os.environ.get("ATTENDAX_NATIVE") == "0":
        return "turned off by ATTENDAX_NATIVE=0"
    if not (FOLDER / NAME).exists():
        path = FOLDER / REASON
        reason = path.read_text("utf-8", "replace").partition("\n")[0] if path.is_file() else ""
        return f"attendax was built without the library: {reason}" if reason else "the library was not built"
    for package in (jax, jaxlib):
        if not OLDEST <= _numbers(package.__version__) < TOO_NEW:
            known = " up to below ".join(".".join(map(str, version)) for version in (OLDEST, TOO_NEW))
            return f"it is for jax {known}; this is {package.__name__} {package.__version__}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version up to the first word: (0, 11, 1) of 0.11.1.dev2026."""
    (digits,) = re.findall(r"^[\d.]*", version)
    return tuple(int(x) for x in digits.split(".") if x)


def _no_set() -> str:
    if wanted := os.environ.get("ATTENDAX_ISA"):
        return f"ATTENDAX_ISA={wanted}: the library has no such instruction set, or this processor does not"
    return "this processor has none of the instruction sets that the library is for"


def status() -> str:
    """One line: whether the library is there, for which instruction set, or why not."""
    isa, why_not = library()
    return f"native kernel: {isa}" if isa else f"native kernel: not used: {why_not}"
