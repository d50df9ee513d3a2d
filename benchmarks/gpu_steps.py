"""The steps of the run on a GPU: the device, the kit on every backend, speed, and the cores of the CPU."""

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import gpu_candidates
import gpu_cases
import gpu_checks
import harness
import machine
import program
from attendax.conformance.cases import at_sizes, choose
from attendax.conformance.cases.how import How
from attendax.conformance.checking import judge
from attendax.conformance.report.outcomes import Outcomes
from attendax.kernels.blockwise import partition
from attendax.kernels.gpu import compiled
from attendax.kernels.operands import Limits, Plan
from contestants import PEERS
from harness import Contestant, threads
from judge import TOLERANCE
from matrix.adapters import ADAPTERS
from matrix.installed import anonymous

HERE = Path(__file__).resolve().parent
CONTESTANTS = ("attendax-tiles", "attendax-cudnn", "attendax-triton", "jax.nn", "jax.nn-cudnn", "torch-sdpa")
OWN_SIZES: dict[str, int] = {}
OF_KERNELS = {"B": 2, "N": 4, "G": 2, "T": 64, "S": 64, "D": 64, "V": 64}
BACKENDS = {  # and the sizes at which the kit judges them: most of its own are none that kernels take
    "blockwise": OWN_SIZES,
    "cudnn": OF_KERNELS,
    "triton": OF_KERNELS,
    "dense": OWN_SIZES,
}
KIT_THREADS = 4
TILES = ((1024, 256), (2048, 256), (2048, 1024), (4096, 1024), (1024, 64), (512, 256))  # rows, MiB; the default first
MEASURES = ("forward", "backward")  # the second is forward and backward


def about(run: Any) -> None:
    """The machine, and the peak of its bf16 product, measured now."""
    device = jax.devices()[0]
    run.found["about"] = found = machine.about("bfloat16")
    stats = device.memory_stats() or {}
    found |= {
        "platform": device.platform,
        "compute_capability": getattr(device, "compute_capability", None),
        "device_bytes": stats.get("bytes_limit"),
        "peak_tflops": machine._matmul_gflops("bfloat16", run.settings.peak_size) / 1e3,
        "tiny": run.settings.tiny,
    }
    if found["device_bytes"]:
        program.MOST_BYTES = int(0.7 * found["device_bytes"])


def kernels(run: Any) -> None:
    """Judge 60 calls of the kernels of Triton, if they can run here. Each record is written as soon as it is there."""
    if not compiled.package().folder.name:  # not installed: those that build.py made in this clone
        sys.path.append(str(HERE.parent / "gpu"))
        compiled.package.cache_clear()
    if reason := compiled.why_not():
        run.leave_out(f"the kernels of Triton: {reason}")
        return

    def keep(record: dict[str, Any]) -> None:
        run.found["checks"].append(record)
        run.write()

    gpu_checks.run_all(list(gpu_checks.checks()), threads(), keep)


def candidates(run: Any, until: float) -> None:
    """Time the kernels in tiles of other sizes, which ``gpu_candidates.py`` has compiled; the wider heads first."""
    every = list(gpu_candidates.candidates(compiled.target())) if run.found["checks"] else []
    if not any(map(gpu_candidates.has, every)):
        run.leave_out("candidates of tiles: none is compiled for this GPU (python -m benchmarks.gpu_candidates)")
        return
    judges = {width: gpu_cases.DeviceJudge(of_width(width)) for width in (128, 64)}
    for one in every:
        what = f"tiles {tuple(one.tiles)} of {one.kernel}, width {one.width}"
        if run.left(until) <= 0 or not gpu_candidates.has(one):
            run.leave_out(f"{what}: {'no time' if run.left(until) <= 0 else 'not compiled'}")
            continue
        run.attempt(what, lambda one=one: one_candidate(run, one, judges[one.width]))


def of_width(width: int) -> Any:
    """The causal case whose heads are so wide."""
    name = {128: "causal-8k", 64: "d64-causal-8k"}[width]
    return gpu_cases.DeviceCase(name, gpu_cases.SHAPES[name], gpu_candidates.DTYPE)


def one_candidate(run: Any, one: Any, right: Any) -> None:
    """Time one, forward or with the gradient, where its results are right."""
    measure = MEASURES[one.kernel != "forward"]
    record: dict[str, Any] = {"kernel": one.kernel, "width": one.width, "tiles": list(one.tiles), "measure": measure}
    record |= {"default": one.is_default, "status": "timed"}
    with gpu_candidates.in_place(one):
        built = PEERS["attendax-triton"].build(right.case, measure)
    if is_right(record, built, right):
        record |= one_timed(run, built)
    run.found["candidates"].append(record)


def kit(run: Any, until: float) -> None:
    """Judge every case on every backend in bfloat16, laws in turn, so that what time leaves out is a few cases of each.

    float32 cases and the judge's own formula run with products of full precision: no TF32 makes a tolerance wide.
    With 16 threads jaxlib 0.11.2 has once ended in a segmentation fault here.
    """
    ours, chosen = ADAPTERS["attendax"], choose(run.settings.only)
    given = {name: ours._replace(options={"implementation": name}).implementation(name) for name in BACKENDS}
    cases = {name: in_turn(at_sizes(chosen, sizes)) for name, sizes in BACKENDS.items()}
    outcomes: dict[str, list[Any]] = {name: [] for name in BACKENDS}

    def one(task: Any) -> None:
        name, case = task
        if run.left(until) > 0:
            outcome = judge(given[name], case, How(dtype="bfloat16", sizes=BACKENDS[name]))
            with run.lock:  # what another thread has found since must not be overwritten
                outcomes[name].append(outcome)
                run.found["kit"] = [counted(n, found, len(cases[n])) for n, found in outcomes.items()]
            run.write()  # a crash of a compiler loses nothing

    in_columns = itertools.zip_longest(*([(name, case) for case in some] for name, some in cases.items()))
    tasks = [task for row in in_columns for task in row if task is not None]
    precision = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        with ThreadPoolExecutor(min(threads(), KIT_THREADS)) as pool:
            list(pool.map(one, tasks))
    finally:
        jax.config.update("jax_default_matmul_precision", precision)


def counted(name: str, found: list[Any], of: int) -> dict[str, Any]:
    """Count the cases of the kit on a backend by how they ended, and list every fault."""
    report = Outcomes(name, "", "jax", tuple(found), "bfloat16")
    faults = [anonymous(f"{o.case.law}, {o.case.name}: {o.told()}") for o in report.failures]
    return {"backend": name, "judged": len(found), "of": of, "counts": report.counts(), "faults": faults}


def in_turn(cases: list[Any]) -> list[Any]:
    """The first case of every law, then the second of every law, ..."""
    by_law: dict[str, list[Any]] = {}
    for case in cases:
        by_law.setdefault(case.law, []).append(case)
    return [case for row in itertools.zip_longest(*by_law.values()) for case in row if case is not None]


def speed(run: Any, until: float) -> None:
    """Measure every case: all contestants compile side by side, are judged, and then take turns."""
    for name, shape in in_order(run).items():
        if run.left(until) <= 0:
            run.leave_out(f"speed, {name}: no time")
            continue
        case = gpu_cases.DeviceCase(name, shape, "bfloat16")
        run.attempt(f"speed, {name}", lambda case=case: one_case(run, case))


def in_order(run: Any) -> dict[str, Any]:
    """The shapes of a run; first those that matter most."""
    shapes = gpu_cases.TINY if run.settings.tiny else gpu_cases.SHAPES
    first = [name for name in gpu_cases.FIRST if name in shapes]
    return {name: shapes[name] for name in dict.fromkeys([*first, *shapes])}


def one_case(run: Any, case: Any) -> None:
    todo = [(name, measure) for name in CONTESTANTS for measure in MEASURES]
    jax.block_until_ready((case.arrays, case.cotangent))  # drawn once, before the threads ask
    with ThreadPoolExecutor(threads()) as pool:
        built = list(pool.map(lambda pair: built_or_why(*pair, case), todo))
    right = gpu_cases.DeviceJudge(case)
    ready: dict[str, list[Contestant]] = {measure: [] for measure in MEASURES}
    records = {}
    for (name, measure), (record, built_program) in zip(todo, built, strict=True):
        records[name, measure] = record
        if built_program is not None and is_right(record, built_program, right):
            ready[measure].append(Contestant(name, functools.partial(built_program.run, built_program.arrays)))
    for measure in MEASURES:
        run.where = f"speed, {case.name}, {measure}"
        clock, rounds = QuietClock(), run.settings.rounds
        timings = harness.measure(ready[measure], rounds=rounds, budget_s=run.settings.budget_s, clock=clock)
        for name, timing in timings.items():
            tflops = case.flops(measure) / timing.median / 1e12
            peak = run.found["about"].get("peak_tflops")
            found = {"seconds": timing.seconds, "median_s": timing.median, "tflops": tflops}
            records[name, measure] |= found | {"share_of_peak": tflops / peak if peak else None}
    run.found["speed"] += records.values()


def tiles(run: Any, until: float) -> None:
    """Our tiles of other sizes, and with products of full precision, on the first case: the default is one of them."""
    case = gpu_cases.DeviceCase(*next(iter(in_order(run).items())), "bfloat16")
    chosen = partition.LIMITS_ON["cuda"]
    for (rows, mebibytes), precision in [*((size, "narrow") for size in TILES), (TILES[0], "full")]:
        if run.left(until) <= 0:
            run.leave_out(f"tiles of {rows} rows in {mebibytes} MiB, {precision} products: no time")
            continue
        run.at(f"tiles of {rows} rows in {mebibytes} MiB, {precision} products")
        limits = Limits(rows, rows, mebibytes * 2**20)
        full = mock.patch.object(Plan, "precision", jax.lax.Precision.HIGHEST) if precision == "full" else nullcontext()
        with mock.patch.dict(partition.LIMITS_ON, cuda=limits), full:
            timed = {measure: one_timed(run, PEERS["attendax-tiles"].build(case, measure)) for measure in MEASURES}
        found = {"rows": rows, "mebibytes": mebibytes, "products": precision, "default": limits == chosen}
        run.found["tiles"].append(found | {"case": case.name, **timed})
        run.write()


def one_timed(run: Any, built: Any) -> dict[str, Any]:
    """The seconds of a program, and its temporaries."""
    one = Contestant("attendax-tiles", functools.partial(built.run, built.arrays))
    timings = harness.measure([one], rounds=run.settings.rounds, budget_s=run.settings.budget_s, clock=QuietClock())
    return {"seconds": timings[one.name].seconds, "temporary_bytes": built.temporary_bytes}


def reason_of(error: BaseException) -> str:
    return anonymous(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


class QuietClock(harness.Clock):
    """A clock where no other process uses the GPU: no round is disturbed, and turns need no wait."""

    def everyone(self) -> float:
        return 0.0

    def own(self) -> float:
        return 0.0

    def rest(self) -> None:
        return None


def built_or_why(name: str, measure: str, case: Any) -> tuple[dict[str, Any], Any]:
    """The record of a contestant, and its program or None."""
    record = {"case": case.name, "contestant": name, "measure": measure, "status": "timed"}
    record |= {"shape": case.shape._asdict(), "pairs": case.pairs}
    start = time.perf_counter()
    try:
        peer = PEERS[name]
        if find_spec(peer.package) is None:
            raise harness.Unable(f"{peer.package} is not installed")
        built = peer.build(case, measure)
    except (harness.Unable, NotImplementedError) as reason:
        return record | {"status": "unable", "reason": " ".join(str(reason).split())[:300]}, None
    except Exception as error:
        return record | {"status": "failed", "reason": reason_of(error)}, None
    compile_s = time.perf_counter() - start
    return record | {"compile_s": compile_s, "temporary_bytes": built.temporary_bytes}, built


def is_right(record: dict[str, Any], built: Any, right: Any) -> bool:
    """Tell whether a program runs and is right; its error goes into its record."""
    try:
        error = right.error(built.to_numpy(built.run(built.arrays)))
    except Exception as failure:
        record |= {"status": "failed", "reason": reason_of(failure)}
        return False
    record["error"] = error
    if not error <= TOLERANCE["bfloat16"]:
        record |= {"status": "wrong", "reason": f"wrong by {error:.1e}"}
    return record["status"] == "timed"


def cores(run: Any) -> None:
    """``bench --cores`` of a few shapes, on the CPU beside the GPU. A shape that is done in time is kept."""
    seconds = min(run.settings.cores_s, run.left(run.settings.limit_s) - 10)
    folder = run.folder / "cores"
    (folder / "results.json").unlink(missing_ok=True)  # of a run before
    shapes = ["minilm-128"] if run.settings.tiny else ["bert-base-128", "gpt2-1024"]
    command = [sys.executable, str(HERE), "bench", "--cores", "--shapes", *shapes, "--rounds", "5"]
    path = os.pathsep.join([str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    options: Any = {"env": environment, "text": True, "start_new_session": True}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--output", str(folder)], **options, **pipes) as process:
        try:
            _, said = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and its workers
            said = run.leave_out(f"the cores of the CPU: stopped after {seconds:.0f} s")
    if not (folder / "results.json").exists():
        raise RuntimeError(f"bench --cores wrote nothing: {(said or '').strip()[-200:]}")
    run.found["cores"] = json.loads((folder / "results.json").read_text(encoding="utf-8")).get("cores", {})
