"""Facts that stand beside the figures: the machine, what it can do at best, the versions, the commit."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import threads

NOT_RESULTS = ("--", ":/", ":(top,exclude)benchmarks/results")  # what one run writes changes nothing for the next
PRODUCT_SIDE = 3072  # rows and columns of each matrix of the product whose speed is measured
PACKAGES = (
    "attendax",
    "jax",
    "jaxlib",
    "numpy",
    "flax",
    "keras",
    "memory-efficient-attention",
    "torch",
    "onnxruntime",
    "onnx",
    "onnxscript",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "safetensors",
)


def versions() -> dict[str, str]:
    """Python and every package that takes part, where it is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def about(dtype: str = "float32") -> dict[str, Any]:
    """The machine, the versions, the commit, and what the machine can do at best, measured now."""
    import jax
    import psutil

    from attendax.kernels import native

    device = jax.devices()[0]
    commit = git("rev-parse", "HEAD") if in_clone() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "device": device.device_kind if device.platform != "cpu" else "cpu",
        "threads": threads(),
        "native": native.status(),
        "real_time_priority": _real_time_priority(),
        "memory_bytes": psutil.virtual_memory().total,
        "cache_bytes": _caches(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
        "commit": commit,
        "uncommitted_changes": bool(git("status", "--porcelain", *NOT_RESULTS)) if commit else None,
        "dtype": dtype,
        "matmul_gflops": _matmul_gflops(dtype),
        "copy_gbytes": _copy_gbytes(),
    }


def _matmul_gflops(dtype: str, size: int = PRODUCT_SIDE, rounds: int = 5) -> float:
    """The best of XLA and, in float32 on a CPU, NumPy on a large square product, 10⁹ FLOP/s."""
    import jax
    import numpy as np

    one = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda x: x @ x)
    calls = [lambda: product(one).block_until_ready()]
    if dtype == "float32" and jax.default_backend() == "cpu":
        array = np.asarray(one)
        calls.append(lambda: array @ array)
    return 2 * size**3 / min(_best(call, rounds) for call in calls) / 1e9


def _copy_gbytes(size: int = 2**26, rounds: int = 5) -> float:
    """10⁹ bytes a second, read and written, of an array that no cache holds."""
    import jax

    negate = jax.jit(lambda x: -x, donate_argnums=0)  # in place: no new pages
    arrays = [jax.numpy.zeros(size, "float32")]

    def call() -> None:
        arrays.append(negate(arrays.pop()).block_until_ready())

    return 2 * 4 * size / _best(call, rounds) / 1e9


def _best(call: Callable[[], Any], rounds: int) -> float:
    call()
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return min(took)


def _real_time_priority() -> bool:
    """Tell whether threads run before all those of other processes, such as under ``chrt -r 20``."""
    if not hasattr(os, "sched_getscheduler"):
        return False
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def processor() -> str:
    """The name of the processor and how many of its cores the system sees."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores"


def _caches() -> dict[str, int]:
    """Bytes of each cache as the first core sees it, such as L2; empty where the system does not say."""
    found = {}
    units = {"K": 2**10, "M": 2**20}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size[:-1].isdigit():
            found[f"L{level}"] = int(size[:-1]) * units.get(size[-1], 1)
    return found


def in_clone() -> bool:
    """Tell whether this file belongs to a commit; an installation below a clone does not."""
    return git("ls-files", "--error-unmatch", "machine.py") is not None


def git(*arguments: str) -> str | None:
    """The answer of git in the folder of this file; None where it fails."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
