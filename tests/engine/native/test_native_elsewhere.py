"""The native kernels in every instruction set, without JAX and XLA: NEON under an emulator, and all under sanitizers.

Debian has what it needs: apt install g++ g++-aarch64-linux-gnu qemu-user.
"""

import platform
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attendax import attention, checks, integers, masks, scores
from judges import as_floats
from native_calls import OPTIONS, SHORT, SIZES, Sizes, arrays, assert_near, cotangents, options, right
from native_driver import CSRC, Driver, built, missing

pytestmark = pytest.mark.slow
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")


class Place(NamedTuple):
    """Where a driver is built, and how it runs."""

    isa: str
    machine: str = "linux-x86_64"
    compiler: str = "c++"
    command: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


NEON = Place("neon", "linux-aarch64", "aarch64-linux-gnu-g++", ("qemu-aarch64",), ("-static",))
HERE = Place("avx2") if platform.machine() == "x86_64" else Place("neon", "linux-aarch64")
PLACES = {
    "neon": NEON if platform.machine() != "aarch64" else HERE,
    "avx2": Place("avx2"),
    "avx512": Place("avx512"),
}
SANITIZED = {
    "threads": HERE._replace(flags=(*SANITIZERS, "-fsanitize=thread")),
    "memory": HERE._replace(flags=(*SANITIZERS, "-fsanitize=address,undefined")),
}


@pytest.fixture(scope="module")
def driver(request, tmp_path_factory):
    place = (PLACES | SANITIZED)[request.param]
    if absent := missing(place.compiler, *place.command):
        pytest.skip(f"not installed: {absent}")
    if not place.command and place.machine != f"linux-{platform.machine()}":
        pytest.skip(f"this is no {place.machine}")
    if "avx512" in place.isa and "avx512bw" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512")
    folder = tmp_path_factory.mktemp(request.param)
    return Driver([*place.command, built(place.machine, place.compiler, folder, place.flags)], place.isa, folder)


in_each_set = pytest.mark.parametrize("driver", PLACES, indirect=True)


CALLS = [name for name in OPTIONS if name != "sinks"]  # no kernel sees a sink: its share is taken from the results


@in_each_set
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("sizes", SIZES)
def test_results_and_gradients_are_those_of_the_specification(driver, sizes, name, monkeypatch):
    z = SIZES[sizes]
    given, found, chosen = arrays(z), cotangents(z), options(name, z)
    assert_near(driver.run(monkeypatch, given, found, **chosen), right(given, found, **chosen), 2e-13, name)


@in_each_set
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["causal", "segments or causal", "bias of keys", "composed", "dropout", "scale"])
@pytest.mark.parametrize("sizes", ["tiny", "one more", "a folded group", "one query, few keys", "one query, many keys"])
def test_narrow_dtypes(driver, sizes, name, dtype, monkeypatch):
    z, narrow = SIZES[sizes], jnp.dtype(dtype)
    given, found, chosen = arrays(z, narrow), cotangents(z, np.float32), options(name, z)
    wanted = as_floats(right(given, found, **chosen))
    chosen |= {"bias": chosen["bias"].astype(np.float32)} if "bias" in chosen else {}
    if "score_mod" in chosen:
        chosen["score_mod"] = jax.tree.map(lambda x: np.asarray(x, np.float32), chosen["score_mod"])
    rounded = float(ml_dtypes.finfo(narrow).eps)  # gradients of query, key and value are rounded to their dtype
    tolerances = [2e-5 + (rounded if index in (2, 3, 4) else 0) for index in range(len(wanted))]
    assert_near(driver.run(monkeypatch, given, found, **chosen), wanted, tolerances, name)


@pytest.mark.law("L6", "native")
@in_each_set
@pytest.mark.parametrize("name", ["none", "causal", "dense", "bias", "composed", "dropout", "forbidding bias"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sizes", ["tiny", "one more", "one query, few keys"])
def test_l6_what_is_not_finite(driver, sizes, number, name, monkeypatch):
    """In one row of query, key and value each."""
    z = SIZES[sizes]
    given, found, chosen = arrays(z), cotangents(z), options(name, z)
    for x, row in zip(given, (0, z.S // 2, z.S - 1), strict=True):
        x[0, 0, row, -1] = number
    assert_near(driver.run(monkeypatch, given, found, **chosen), right(given, found, **chosen), 2e-13, name)


@in_each_set
def test_a_number_that_is_not_finite_in_a_bias_and_in_dout(driver, monkeypatch):
    z = SIZES["one more"]
    given, found, chosen = arrays(z), cotangents(z), options("bias", z)
    chosen["bias"][0, 1, 3, 40], chosen["bias"][0, 2, 64, 64] = np.nan, np.inf
    found[0][0, 3, 5, 1] = np.nan
    assert_near(driver.run(monkeypatch, given, found, **chosen), right(given, found, **chosen), 2e-13, "bias")


@pytest.mark.parametrize("driver", [*PLACES, *SANITIZED], indirect=True)
@pytest.mark.parametrize("name", ["none", "padding", "dense", "dropout"])
@pytest.mark.parametrize("sizes", SHORT)
def test_directions(driver, sizes, name, monkeypatch):
    """Beside the library of this machine, which the tests of directions hold against tiles."""
    z = SHORT[sizes]
    given, moved, found, chosen = arrays(z), arrays(z, seed=1), cotangents(z), options(name, z)

    def gradients(*given):
        return jax.vjp(lambda *given: attention(*given, **chosen, return_lse=True), *given)[1](tuple(found))

    results = jax.jvp(lambda *given: attention(*given, **chosen, return_lse=True), given, moved)[1]
    wanted = as_floats([*results, *jax.jvp(gradients, given, moved)[1]])
    assert_near(driver.directions(monkeypatch, given, moved, found, **chosen), wanted, 1e-12, name)


@pytest.mark.law("L15", "native")
@in_each_set
@pytest.mark.parametrize("name", ["causal", "bias of keys", "bias of heads", "composed", "dropout"])
def test_l15_any_number_of_threads_gives_the_same_bits(driver, name, monkeypatch):
    z = SIZES["two chunks of keys"]
    given, found, chosen = arrays(z), cotangents(z), options(name, z)
    first, *others = (
        driver._replace(threads=threads, repeats=2).run(monkeypatch, given, found, **chosen) for threads in (1, 2, 5)
    )
    for other in others:
        assert [np.asarray(x).tobytes() for x in first] == [np.asarray(x).tobytes() for x in other]


@pytest.mark.parametrize("driver", ["threads"], indirect=True)
@pytest.mark.parametrize(
    "name",
    ["none", "causal", "dense", "bias of keys", "bias of queries", "bias of heads", "bias", "composed", "dropout"],
)
def test_threads_do_not_race(driver, name, monkeypatch):
    """Three chunks of queries and of keys; gradients that several chunks, heads and entries of the batch add to."""
    z = Sizes(2, 2, 1, 1030, 1930, 1, 1)
    given, found = arrays(z), cotangents(z)
    driver._replace(threads=3, repeats=2).run(monkeypatch, given, found, **options(name, z))


@pytest.mark.parametrize("driver", ["threads"], indirect=True)
@pytest.mark.parametrize("name", ["none", "causal", "bias of keys", "dropout"])
def test_threads_that_share_the_keys_of_few_queries_do_not_race(driver, name, monkeypatch):
    """Chunks of keys are merged by one of them."""
    z = Sizes(1, 2, 1, 2, 7700, 32, 32)
    given, found = arrays(z), cotangents(z)
    driver._replace(threads=3, repeats=5).run(monkeypatch, given, found, **options(name, z))


ERRORS = {
    "threads": "int x; std::thread a([&] { for (int i = 0; i < 9999; ++i) ++x; }); x = 3; a.join(); return x < 0;",
    "memory": "int* x = new int[4]; x[std::time(0) ? 4 : 0] = 1; std::thread([=] { delete[] x; }).join();",
}


@pytest.mark.parametrize("name", SANITIZED)
def test_a_sanitizer_finds_an_error(name, tmp_path):
    if absent := missing("c++"):
        pytest.skip(f"not installed: {absent}")
    (tmp_path / "error.cc").write_text(f"#include <ctime>\n#include <thread>\nint main() {{ {ERRORS[name]} }}\n")
    command = ["c++", *SANITIZED[name].flags, "-pthread", tmp_path / "error.cc", "-o", tmp_path / "error"]
    subprocess.run(command, check=True)
    done = subprocess.run([tmp_path / "error"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "data race" in done.stderr or "insufficient space" in done.stderr or "overflow" in done.stderr


OVERRUNS = {  # a slice of scratch memory that is too short: what should lie in it lies in the next one
    "forward.h": ("from.take<Real>(p.width * kLd)", "from.take<Real>((p.width - 1) * kLd)"),
    "backward.h": ("dqueries = from.take<Real>(D * kLd)", "dqueries = from.take<Real>((D - 1) * kLd)"),
}


@pytest.mark.parametrize("file", OVERRUNS)
def test_a_sanitizer_finds_a_slice_that_runs_into_the_next(file, tmp_path, monkeypatch):
    if absent := missing(HERE.compiler):
        pytest.skip(f"not installed: {absent}")
    csrc, (text, planted) = tmp_path / "csrc", OVERRUNS[file]
    shutil.copytree(CSRC, csrc)
    source = (csrc / file).read_text("utf-8")
    assert source.count(text) == 1
    (csrc / file).write_text(source.replace(text, planted))
    place = SANITIZED["memory"]
    driver = Driver([built(place.machine, place.compiler, tmp_path, (*place.flags, "-O0"), csrc)], place.isa, tmp_path)
    z = SIZES["whole blocks"]
    with pytest.raises(AssertionError, match="use-after-poison"):
        driver.run(monkeypatch, arrays(z, np.float32), cotangents(z, np.float32))


EDGES = [(1, 1), (1, 97), (64, 1), (65, 96), (63, 193), (129, 95), (513, 3), (3, 1921)]


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_memory(driver, dtype, name, monkeypatch):
    """Nothing is read or written beyond an array, at sizes on both sides of every limit, in widths that are odd."""
    for k, (T, S) in enumerate(EDGES):
        z = Sizes(2, 4, (1, 2, 4)[k % 3], T, S, (1, 7, 16, 33)[k % 4], (5, 1, 32, 17)[k % 4])
        chosen = options(name, z)
        if dtype != "float64":
            chosen |= {"bias": chosen["bias"].astype(np.float32)} if "bias" in chosen else {}
        wide = np.float64 if dtype == "float64" else np.float32
        driver.run(monkeypatch, arrays(z, jnp.dtype(dtype)), cotangents(z, wide), **chosen)


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_memory_where_lengths_and_offsets_are_out_of_bounds(driver, monkeypatch):
    """Lengths below 0 and beyond all keys, windows and offsets at the ends of what is taken."""
    z = Sizes(2, 2, 2, 70, 130, 5, 5)
    given, found = arrays(z, np.float32), cotangents(z, np.float32)
    ends, far = np.array([-(2**31), 2**31 - 1], np.int32), integers.SIDE
    monkeypatch.setattr(checks, "lengths", lambda *args, **options: None)  # as under jit, where they are not known
    for mask in (
        masks.padding(ends), masks.padding(ends, ends[::-1].copy()), masks.prefix(ends), masks.causal(ends),
        masks.window(far, far, 5), masks.window(0, 0, -(2**31)), masks.window(far, None, 2**31 - 1),
        masks.window(far, far, ends), masks.causal(-(2**62)), masks.causal(2**62),
        ~masks.causal(ends) | masks.padding(ends),
    ):  # fmt: skip
        driver.run(monkeypatch, given, found, mask=mask)
    for offset in (*ends, np.int32(0)):
        for modifier in (
            scores.alibi(np.ones(2, np.float32), offset),
            scores.relative_bias(np.ones((2, 5), np.float32), offset),
        ):
            driver.run(monkeypatch, given, found, score_mod=modifier)


WEIGHTS = [(1, 1), (37, 75), (64, 128), (300, 91), (600, 17)]
everywhere = pytest.mark.parametrize("driver", [*PLACES, *SANITIZED], indirect=True)


@everywhere
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_products_of_layers(driver, dtype, turned):
    """Right, and the rows of few tokens are those of many, whatever their number; on several threads."""
    driver = driver._replace(threads=3)
    for depth, columns in WEIGHTS:
        rng = np.random.default_rng([depth, columns])
        x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((500, depth), (depth, columns)))
        given = np.ascontiguousarray(w.T) if turned else w
        wanted, found = x.astype("f8") @ w.astype("f8"), {}
        for rows in (1, 3, 16, 17, 97, 500):
            call = driver.ffi_call("attendax_project", [jax.ShapeDtypeStruct((rows, columns), dtype)])
            (found[rows],) = call(x[:rows], given, ints=[turned], floats=[0.0])
            assert_near([found[rows]], [wanted[:rows]], 40 * float(np.finfo(dtype).eps), f"{rows} rows")
        assert all(y.tobytes() == found[500][:rows].tobytes() for rows, y in found.items())
