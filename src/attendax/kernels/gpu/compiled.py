"""The compiled kernels: where they lie, for which GPU, and the launcher through which XLA calls them.

They are files of the package ``attendax-gpu`` (``build.py`` makes it), which is data alone. Its index has the digest of
the sources that they were made of, so that no kernel meets other arguments than its own.
"""

import ctypes
import functools
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import cudnn
from ..native.library import FOLDER, NAME, library
from . import launches

TARGET = "attendax_launch"
PACKAGE = "attendax_gpu"
INDEX = "index.json"
HERE = Path(__file__).parent
SOURCES = ("kernels.py", "bias.py", "pairs.py", "rows.py", "launches.py")
NOT_INSTALLED = "the package attendax-gpu is not installed"


class Package(NamedTuple):
    """The kernels of the package, in the order of its index; or else why there are none."""

    folder: Path
    kernels: dict[str, dict[str, Any]]  # by "target/name": its number, function, threads, shared and scratch memory
    digest: int  # of the index: a program that was compiled for others is refused
    why_not: str


class Launcher(NamedTuple):
    """The library that launches, or else why there is none."""

    add_kernel: Any
    why_not: str


def why_not() -> str:
    """The reason why no compiled kernel can run here; nothing where one can."""
    found = cudnn.capability()
    if found is None:
        there = ", ".join(sorted({device.platform for device in jax.devices()}))
        return f"JAX finds no NVIDIA GPU (it finds: {there})"
    if not target():
        *all_but, last = (f"{x}.{y}" for of in launches.TARGETS.values() for x, y in of)
        there = f"{', '.join(all_but)} and {last}"
        return f"there are kernels for compute capability {there}; the GPU has {'.'.join(map(str, found))}"
    return package().why_not or launcher().why_not


def target() -> str:
    """The target whose kernels the GPU runs; empty if there is none."""
    found = cudnn.capability()
    return next((name for name, capabilities in launches.TARGETS.items() if found in capabilities), "")


def source_digest() -> str:
    """A digest of the sources of the kernels."""
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()


@functools.cache
def package() -> Package:
    """Find the package, and read its index, once in a process."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        return Package(Path(), {}, 0, NOT_INSTALLED)
    folder = Path(places[0])
    try:
        text = (folder / INDEX).read_bytes()
        index = json.loads(text)
        kernels = {name: entry | {"number": number} for number, (name, entry) in enumerate(index["kernels"].items())}
        lacking = [name for name in kernels if not (folder / f"{name}.cubin").is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Package(folder, {}, 0, f"the package attendax-gpu is broken: {type(error).__name__}: {error}")
    if index.get("source") != source_digest():
        return Package(folder, {}, 0, "the package attendax-gpu was made for another version of attendax")
    if lacking:
        return Package(folder, {}, 0, f"the package attendax-gpu is broken: it lacks {lacking[0]}.cubin")
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
    return Package(folder, kernels, digest, "")


@functools.cache
def launcher() -> Launcher:
    """Find the launcher in the native library, and register it with XLA, once in a process."""
    if reason := library().why_not:
        return Launcher(None, f"the native library, which launches kernels, is not used: {reason}")
    loaded = ctypes.CDLL(str(FOLDER / NAME))
    if not hasattr(loaded, TARGET):
        return Launcher(None, "the native library is of another version than attendax: build it anew")
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(loaded, TARGET)), platform="CUDA")
    return Launcher(loaded.attendax_add_kernel, "")


@functools.cache
def _added(name: str) -> int:
    """The number of a kernel, of which the launcher has been told."""
    folder, kernels, digest, _ = package()
    entry = kernels[name]
    image = (folder / f"{name}.cubin").read_bytes()
    numbers = (ctypes.c_int64(entry[word]) for word in ("number", "threads", "shared", "scratch"))
    function = entry["function"].encode()
    launcher().add_kernel(ctypes.c_int64(digest), function, image, ctypes.c_int64(len(image)), *numbers)
    return entry["number"]


def plan_of(program: launches.LaunchSequence) -> np.ndarray[Any, Any]:
    """A program as whole numbers, which ``csrc/launcher.cc`` reads in this order."""
    place = {name: number for number, name in enumerate((*program.given, *program.results, *program.inner))}
    words = [package().digest]
    for launch in program.launches:
        words += [_added(f"{target()}/{launch.name}"), launch.blocks]
        words += [len(launch.arrays), *(place[name] for name in launch.arrays), len(launch.numbers), *launch.numbers]
    return np.array(words, np.int64)
