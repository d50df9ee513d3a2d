"""The native kernels without JAX: ``native/driver.cc``, for some machine, in the place of ``jax.ffi.ffi_call``."""

import concurrent.futures
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax.kernels import native
from attendax.kernels.call import checked_call
from attendax.kernels.native import build
from attendax.kernels.operands import Results

CSRC, SOURCE = Path(build.__file__).parent / "csrc", Path(__file__).parent / "csrc" / "driver.cc"
DTYPES = {  # XLA's numbers for them
    "bool": 1, "int32": 4, "uint32": 8, "float16": 10, "float32": 11, "float64": 12, "bfloat16": 16,
}  # fmt: skip


def missing(*programs):
    """The programs that are not installed."""
    return ", ".join(name for name in programs if shutil.which(name) is None)


def built(machine, compiler, folder, flags=(), csrc=CSRC):
    """The driver for a machine, with the flags of its library, from the sources in ``csrc``."""
    both = [*build.BASE, *build.WARNINGS, "-Werror", *flags]

    def compiled(unit):
        target = folder / f"{unit.name}.o"
        source = SOURCE if unit.name == "driver" else csrc / unit.source
        subprocess.run([compiler, *both, *unit.flags, f"-I{csrc}", "-c", source, "-o", target], check=True)
        return target

    units = [*build.units(machine), build.Unit("driver", "driver.cc", "", ())]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, units))
    subprocess.run([compiler, *both, "-pthread", "-o", folder / "driver", *objects], check=True)
    return folder / "driver"


class Driver(NamedTuple):
    """How it is run: a command, for an instruction set, with threads beside the caller's."""

    command: list
    isa: str
    folder: Path
    threads: int = 2
    repeats: int = 1

    def ffi_call(self, target, types):
        """A stand-in for ``jax.ffi.ffi_call``, for arrays that are there."""

        def call(*arrays, ints, floats):
            shapes = [np.empty(t.shape, t.dtype) for t in types]
            problem, results = self.folder / "problem", self.folder / "results"
            problem.write_bytes(b"".join(_problem(target, [np.asarray(x) for x in arrays], ints, floats, shapes)))
            command = [*self.command, problem, results, str(self.threads), str(self.repeats)]
            environment = os.environ | {"ATTENDAX_ISA": self.isa}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, done.stderr[-6000:]
            assert done.stdout.strip() == self.isa
            return _split(results.read_bytes(), shapes)

        return call

    def run(self, monkeypatch, given, found, **options):
        """out, lse, and the gradients of query, key, value, bias and the arrays of a modifier."""
        operands, plan = checked_call("attention", *given, **options)
        assert native.program.why_not(operands, plan) == ""
        with monkeypatch.context() as patch:
            patch.setattr(jax.ffi, "ffi_call", self.ffi_call)
            results = native.forward(operands, plan)
            dlse = np.where(np.isfinite(results.lse), found[1][..., None], 0)
            wanted = [x.shape if jnp.issubdtype(x.dtype, jnp.floating) else None for x in operands.differentiable()]
            saved = Results(*results[:3])
            grads = [*native.cotangent((found[0], dlse), operands, saved, plan, wanted)]
        if "bias" in options:
            grads[3] = grads[3].reshape(np.shape(options["bias"]))
        return [results.out, results.lse[..., 0], *grads]

    def directions(self, monkeypatch, given, moved, found, **options):
        """The tangents of out, lse, and the gradients of query, key and value."""
        operands, plan = checked_call("attention", *given, **options)
        assert native.keeps(operands, plan)
        with monkeypatch.context() as patch:
            patch.setattr(jax.ffi, "ffi_call", self.ffi_call)
            out, lse = native.tangent(moved, operands, None, plan)
            grads = found[0], found[1][..., None]
            return [out, lse[..., 0], *native.hvp(moved, grads, (), operands, plan, [x.shape for x in given])]


def _problem(target, arrays, ints, floats, shapes):
    """The bytes that driver.cc reads."""
    yield np.int64(native.TARGETS.index(target)).tobytes()
    for numbers, dtype in ((ints, np.int64), (floats, np.float64)):
        numbers = np.asarray(numbers, dtype)
        yield np.int64(numbers.size).tobytes() + numbers.tobytes()
    yield np.int64(len(arrays)).tobytes()
    for x in arrays:
        yield _head(x) + x.tobytes()
    yield np.int64(len(shapes)).tobytes()
    yield from map(_head, shapes)


def _head(x):
    return np.array([DTYPES[str(x.dtype)], x.itemsize, x.ndim, *x.shape], np.int64).tobytes()


def _split(data, shapes):
    """One array for each shape, one after the other."""
    found, at = [], 0
    for x in shapes:
        found.append(np.frombuffer(data, x.dtype, x.size, at).reshape(x.shape))
        at += x.nbytes
    assert at == len(data)
    return found
