"""A GPU that is not there: a driver of CUDA that a test compiles, and a package of kernels that are names alone."""

import contextlib
import ctypes
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

import gpu_calls
from attendax.kernels.gpu import compiled, launches
from attendax.kernels.native import build
from attendax.kernels.native.library import FOLDER, NAME, library

HERE = Path(__file__).parent
CSRC = Path(build.HERE) / "csrc"
CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
SHARED = 50 << 10


class Launched:
    """What the driver was told to launch."""

    def __init__(self, name, sizes, parameters, stream):
        self.name, self.stream = name.decode(), stream
        self.blocks, self.threads, self.shared = sizes[:3]
        self.launch = TEMPLATES()[self.name]
        count = len(self.launch.arrays)
        self.addresses = [ctypes.c_uint64.from_address(parameters[k]).value for k in range(count)]
        behind = count + len(self.launch.numbers)
        self.numbers = tuple(ctypes.c_int32.from_address(parameters[k]).value for k in range(count, behind))
        self.scratch = [ctypes.c_uint64.from_address(parameters[k]).value for k in (behind, behind + 1)]

    @property
    def kernel(self):
        return self.launch.kernel


@functools.cache
def TEMPLATES():
    """One launch of each kernel of the fake package, by name."""
    return {launch.name: launch for target in (gpu_calls.TINY, "sm_90") for launch in every_launch(target)}


def every_launch(target):
    with pytest.MonkeyPatch.context() as patch:
        if target == gpu_calls.TINY:
            gpu_calls.stand_in(patch)
        return list(launches.every_launch(target))


class Gpu:
    """The driver, loaded under the name of the real one, so that the launcher finds it; on the platform of a CPU."""

    def __init__(self):
        folder = Path(tempfile.mkdtemp())
        path = folder / "libfake.so"
        command = [
            *build.find_compiler(),
            "-std=c++20",
            "-shared",
            "-fPIC",
            "-I",
            CSRC,
            HERE / "csrc" / "fake_driver.cc",
        ]
        subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-o", path], check=True)
        self.launched, self.on_launch, self.path = [], lambda launched: None, path
        self.library = ctypes.CDLL(str(FOLDER / NAME))

    def load(self):
        self.driver = ctypes.CDLL(str(self.path))
        self._callback = CALLBACK(self._launched)  # kept alive
        self.driver.on_launch(self._callback)
        self.driver.use_launcher(self.library.attendax_launch)
        self.driver.fake_handler.restype = ctypes.c_void_p

    def _launched(self, *told):
        one = Launched(*told)
        self.launched.append(one)
        self.on_launch(one)


@functools.cache
def the_gpu():
    """The one of this process; or why there is none."""
    if reason := library().why_not:
        pytest.skip(f"no native library: {reason}")
    try:
        gpu = Gpu()
    except build.NotBuilt as error:
        pytest.skip(str(error))
    if not hasattr(gpu.library, compiled.TARGET):
        pytest.skip("the native library is older than its sources")
    gpu.load()
    capsule = jax.ffi.pycapsule(gpu.driver.fake_handler)
    jax.ffi.register_ffi_target(compiled.TARGET, capsule, platform="cpu")
    return gpu


def write_package(folder, **changes):
    """A package whose kernels are names; its index with changes."""
    kernels = {}
    for target in (gpu_calls.TINY, "sm_90"):
        for launch in every_launch(target):
            path = folder / target / f"{launch.name}.cubin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\177ELF" + launch.name.encode())
            threads = 32 * launch.tiles.warps
            shared = SHARED if launch.kernel == "forward" else 100
            kernels[f"{target}/{launch.name}"] = {
                "function": launch.name,
                "threads": threads,
                "shared": shared,
                "scratch": 2,
            }
    index = {"source": compiled.source_digest(), "triton": "", "kernels": kernels} | changes
    (folder / "__init__.py").write_text("")
    (folder / compiled.INDEX).write_text(json.dumps(index))


@contextlib.contextmanager
def installed(folder, name="fake_attendax_gpu"):
    """The folder of a package of kernels that are names, which attendax finds."""
    write_package(folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "PACKAGE", name)
        patch.syspath_prepend(folder)
        sys.path_importer_cache.clear()
        forget()
        yield folder / name
    forget()


def forget():
    """What was found of packages and kernels."""
    for found in (compiled.package, compiled._added, compiled.launcher):
        found.cache_clear()
