"""``python src/attendax/kernels/gpu/build.py``: compile every kernel for every target, into the package.

It needs Triton, of the version that is pinned here, and no GPU. The package, ``attendax-gpu``, is the folder ``gpu/``
of the repository; ``pip wheel ./gpu`` makes its wheel. ``--table FILE`` writes what the compiler says of the kernels of
each target, and of each kernel.
"""

import argparse
import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendax.kernels.gpu import compiled, launches

TRITON = "3.9.0"
ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "gpu" / compiled.PACKAGE
POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int32": "*i32", "int8": "*i8"}
MOST_SPILLS = 64  # bytes of a thread; not with care, where few work
MOST_SHARED = {  # bytes of a block, on the smallest GPU that runs the target
    "sm_80": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
}


def compile_kernel(launch: launches.Launch, target: str) -> tuple[bytes, dict[str, Any]]:
    """A kernel for a target, and its entry in the index."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from attendax.kernels.gpu import kernels

    function = getattr(kernels, launch.kernel)
    count, names = len(launch.arrays), function.arg_names
    types = dict(zip(names, (POINTERS[launch.type_of(name)] for name in launch.arrays), strict=False))
    types |= dict.fromkeys(names[count : count + len(launch.numbers)], "i32")
    types |= dict.fromkeys(launch.constants, "constexpr")
    aligned = {(k,): [["tt.divisibility", 16]] for k in range(count)}
    source = ASTSource(function, types, launch.constants, aligned)
    options = {"num_warps": launch.tiles.warps, "num_stages": launch.tiles.stages, "enable_fp_fusion": False}
    said = io.StringIO()  # what the assembler says of registers and spills
    with knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.nvidia.dump_ptxas_log = True
        made = compile(source, target=GPUTarget("cuda", int(target.removeprefix("sm_")), 32), options=options)
    text = made.asm["ptx"]
    parameters = len(re.findall(r"\.param", text.partition(".entry")[2].partition("{")[0]))
    found = {"function": made.metadata.name, "threads": 32 * launch.tiles.warps, "shared": made.metadata.shared}
    found |= {"scratch": parameters - count - len(launch.numbers), "care": bool(launch.constants.get("CARE"))}
    found["products"] = next((name for name in ("wgmma", "tcgen05", "mma") if f"{name}." in text), "")
    for word, said_so in (("registers", r"Used (\d+) registers"), ("spills", r"(\d+) bytes spill stores")):
        (found[word],) = map(int, re.findall(said_so, said.getvalue()))
    return made.asm["cubin"], found


Entries = dict[str, dict[str, Any]]  # of the index, by name


def _compiled(one: tuple[str, launches.Launch]) -> tuple[bytes, dict[str, Any]]:
    """Compile a kernel in a process of the pool."""
    target, launch = one
    return compile_kernel(launch, target)


def compile_all(folder: Path, wanted: Sequence[tuple[str, str, launches.Launch]], processes: int) -> Entries:
    """Compile kernels into a folder: each has a folder of its own there, a target, and a launch. Equal ones once."""
    import triton

    if triton.__version__ != TRITON:
        raise SystemExit(f"the kernels are compiled by Triton {TRITON}; this is {triton.__version__}")
    # Of the two assemblers of Triton the older: drivers of CUDA 12 load what it makes.
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    os.environ |= dict.fromkeys(("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"), str(assembler))
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    places: dict[str, list[str]] = {}  # of each of those that differ
    different = {}
    for of, target, launch in wanted:
        key = f"{target}/{launch.name}/{launch.tiles.warps}/{launch.tiles.stages}"
        different[key] = target, launch
        places.setdefault(key, []).append(f"{of}/{launch.name}")
    for of in {of for of, _, _ in wanted}:
        shutil.rmtree(folder / of, ignore_errors=True)
    kernels: Entries = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        with pool:
            for key, (image, entry) in zip(different, pool.map(_compiled, different.values()), strict=True):
                for name in places[key]:
                    path = folder / f"{name}.cubin"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(image)
                    kernels[name] = entry
                    print(f"{name}: {entry['registers']} registers, {entry['spills']} bytes of spills", flush=True)
    return kernels


def write_index(folder: Path, kernels: Entries) -> None:
    """Write what is in a package of kernels."""
    index = {"source": compiled.source_digest(), "triton": TRITON, "kernels": kernels}
    (folder / compiled.INDEX).write_text(json.dumps(index, indent=1), "utf-8")


def build(folder: Path, targets: Sequence[str], processes: int) -> Entries:
    """Compile the kernels of these targets into a folder, and write its index."""
    wanted = [(target, target, launch) for target in targets for launch in launches.every_launch(target)]
    kernels = compile_all(folder, wanted, processes)
    write_index(folder, kernels)
    return kernels


def summary(kernels: Entries, folder: Path) -> str:
    """The kernels of each target as a row of a table in Markdown."""
    rows = []
    for target, capabilities in launches.TARGETS.items():
        own = {name: entry for name, entry in kernels.items() if name.startswith(f"{target}/")}
        if own:
            size = sum((folder / f"{name}.cubin").stat().st_size for name in own)
            spills = [max(x["spills"] for x in own.values() if x["care"] is care) for care in (False, True)]
            shared = max(entry["shared"] for entry in own.values()) >> 10
            products = sorted({entry["products"] for entry in own.values()} - {""})
            gpus = ", ".join(f"{x}.{y}" for x, y in capabilities)
            most = f"{shared} of {MOST_SHARED[target] >> 10}"
            rows.append([target, gpus, len(own), f"{size / 2**20:.1f}", *spills, most, ", ".join(products)])
    spilled = "most spills without care", "most spills with care"
    return _markdown([("target", "capability", "kernels", "MiB", *spilled, "most shared KiB", "products by"), *rows])


def _markdown(rows: Sequence[Sequence[object]]) -> str:
    """Rows as a table in Markdown; the first is its head."""
    head, *others = ([str(x) for x in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *others))


COLUMNS = [(target, W) for target in launches.TARGETS for W in launches.WIDTHS]


def table(kernels: Entries) -> str:
    """The kernels as a table in Markdown, those with care by their spills alone."""
    cells: dict[str, dict[tuple[str, int], list[str]]] = {}
    for name, entry in kernels.items():
        target, _, kernel = name.partition("/")
        kind, dtype, width, *others = kernel.split("-")
        modified = ", modified" if others[3:4] == ["1"] else ""
        row = cells.setdefault(f"{dtype}: {kind.replace('_', ' ')}{modified}", {})
        words = [entry["registers"], entry["spills"], entry["shared"] >> 10, entry["products"]]
        text = f"({entry['spills']})" if entry["care"] else "; ".join(str(x) for x in words if x != "")
        row.setdefault((target, int(width)), []).append(text)
    head = ["registers; bytes of spills (with care); KiB; products by", *(f"{t}, {W}" for t, W in COLUMNS)]
    rows = [[name, *(" ".join(row.get(column, [""])) for column in COLUMNS)] for name, row in sorted(cells.items())]
    return _markdown([head, *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Build the package; fail where a kernel spills more than it may, or needs more shared memory than there is."""
    parser = argparse.ArgumentParser(description="Compile the kernels for GPUs, without one.")
    parser.add_argument("--out", type=Path, default=PACKAGE, metavar="FOLDER", help="instead of the package")
    parser.add_argument("--target", nargs="*", default=list(launches.TARGETS), choices=list(launches.TARGETS))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--table", type=Path, metavar="FILE", help="what the compiler says of the kernels")
    args = parser.parse_args(argv)
    kernels = build(args.out, args.target, args.processes)
    if args.table:
        args.table.write_text(f"{summary(kernels, args.out)}\n{table(kernels)}", "utf-8")
    spilling = [name for name, entry in kernels.items() if entry["spills"] > MOST_SPILLS and not entry["care"]]
    too_large = [name for name, entry in kernels.items() if entry["shared"] > MOST_SHARED[name.split("/")[0]]]
    size = sum(path.stat().st_size for path in args.out.rglob("*.cubin"))
    print(f"{len(kernels)} kernels, {size / 2**20:.1f} MiB; with too many spills: {spilling or 'none'}; "
          f"with too much shared memory: {too_large or 'none'}")  # fmt: skip
    return bool(spilling or too_large)


if __name__ == "__main__":
    sys.exit(main())
