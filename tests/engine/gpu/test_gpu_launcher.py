"""From ``jax.jit`` and ``jax.grad`` through the custom call and the launcher to a driver that stands in for CUDA's."""

import ctypes
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fake_gpu
import gpu_calls as calls
from attendax import attention, explain, masks, scores
from attendax.kernels import cudnn
from attendax.kernels.call import checked_call
from attendax.kernels.gpu import build, compiled, launches
from attendax.kernels.native.library import Library
from attendax.sharding import in_shard_map as across

FORWARD = ["mark_keys", "forward", "forward", "join_parts"]  # the keys are two parts
BACKWARD = ["prepare_rows", "gradient_of_query", "gradient_of_query"]
OF_KEYS = ["gradients_of_keys", "gradients_of_keys"]


@pytest.fixture
def package(tmp_path):
    with fake_gpu.installed(tmp_path) as folder:
        yield folder


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(compiled, "PACKAGE", "no_such_package")
    fake_gpu.forget()
    yield
    fake_gpu.forget()


@pytest.fixture
def gpu(package, monkeypatch):
    """A GPU that runs nothing, and writes down what it is told."""
    found = fake_gpu.the_gpu()
    calls.stand_in(monkeypatch)
    found.launched.clear()
    yield found
    found.on_launch = lambda launched: None
    found.driver.fail_in(b"", 0)
    found.driver.be_on_device(1)
    jax.clear_caches()


def attend(*arrays, **options):
    return attention(*map(jnp.asarray, arrays), implementation="triton", **options)


def test_each_launch_gets_its_arrays_and_numbers(gpu):
    """In the order of the kernels, on XLA's stream; the results are what the driver writes."""
    query, key, value, *_ = calls.arrays_of(D=32, V=32)
    seen = {}

    def on_launch(launched):
        if launched.kernel == "forward":
            for name, at in zip(launched.launch.arrays, launched.addresses, strict=True):
                seen[name] = at
            out = np.ctypeslib.as_array((ctypes.c_uint16 * query.size).from_address(seen["out"]))
            out[:] = 0x3F80  # 1 in bfloat16
            given = {"query": query, "key": key, "value": value, "factors": np.float32([0.25])}
            seen.update({name: ctypes.string_at(seen[name], x.nbytes) == x.tobytes() for name, x in given.items()})

    gpu.on_launch = on_launch
    out = jax.jit(lambda *a: attend(*a, scale=0.25, mask=masks.causal()))(query, key, value)
    assert np.asarray(out).astype(np.float32).min() == 1
    assert [one.kernel for one in gpu.launched] == FORWARD
    assert all(seen[name] is True for name in ("query", "key", "value", "factors"))
    assert {one.stream for one in gpu.launched} == {7}
    tiles_of_keys, tiles = 3 * 2, 3 * 4  # of 16: 45 keys, 37 queries
    assert [one.blocks for one in gpu.launched] == [tiles_of_keys, tiles * 2, tiles * 2, tiles]
    assert gpu.launched[1].numbers == (2, 2, 37, 45, 0, 0, 0, 32, 0, 2, 2, 0)
    assert {(one.threads, one.shared) for one in gpu.launched[1:3]} == {(128, fake_gpu.SHARED)}
    assert gpu.driver.shared_memory() == fake_gpu.SHARED  # which CUDA gives only if asked
    assert all(one.scratch == [0, 0] for one in gpu.launched)


def test_the_gradient_launches_what_is_wanted(gpu):
    arrays = calls.arrays_of()

    def loss(*a):
        return attend(*a).astype(jnp.float32).sum()

    jax.block_until_ready(jax.jit(jax.grad(loss, (0, 1, 2)))(*map(jnp.asarray, arrays[:3])))
    assert [one.kernel for one in gpu.launched] == FORWARD + BACKWARD + OF_KEYS
    gpu.launched.clear()
    jax.block_until_ready(jax.jit(jax.grad(loss))(*map(jnp.asarray, arrays[:3])))
    assert [one.kernel for one in gpu.launched] == FORWARD + BACKWARD


def test_a_kernel_is_loaded_once_on_each_device(gpu):
    arrays = calls.arrays_of(T=5)[:3]
    jax.block_until_ready(attend(*arrays))
    before = gpu.driver.loaded_modules()
    jax.block_until_ready(attend(*arrays))
    assert gpu.driver.loaded_modules() == before
    gpu.driver.be_on_device(2)
    jax.block_until_ready(attend(*arrays))
    assert gpu.driver.loaded_modules() == before + 4


class TestErrors:
    """A driver that fails, and a program that does not fit: an error of XLA, and the next call runs."""

    @pytest.mark.parametrize(
        ("function", "status", "message"),
        [
            ("cuStreamGetCtx", 400, r"the context of the stream: an error that is not known \(400\)"),
            ("cuModuleGetFunction", 500, r"the kernel mark_keys\S+: an error that is not known \(500\)"),
            ("cuLaunchKernel", 700, r"the launch of the kernel mark_keys\S+: CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"),
        ],
    )
    def test_a_driver_that_fails(self, gpu, function, status, message):
        arrays = calls.arrays_of(T=5)[:3]
        gpu.driver.be_on_device(status)  # where nothing is loaded yet
        gpu.driver.fail_in(function.encode(), status)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"attendax: {message}"):
            jax.block_until_ready(attend(*arrays))
        gpu.driver.fail_in(b"", 0)
        jax.block_until_ready(attend(*arrays))

    def test_a_kernel_that_is_no_cubin(self, gpu, package):
        for path in package.rglob("mark_keys*"):
            path.write_bytes(b"not a cubin")
        (package / compiled.INDEX).write_text((package / compiled.INDEX).read_text() + "\n")  # another digest
        compiled.package.cache_clear()
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"does not load: CUDA_ERROR_INVALID_IMAGE \(200\)"):
            jax.block_until_ready(attend(*calls.arrays_of(T=5)[:3]))

    def call(self, words):
        x = jnp.zeros(4, jnp.float32)
        run = jax.ffi.ffi_call(compiled.TARGET, [jax.ShapeDtypeStruct((4,), jnp.float32)])
        return jax.block_until_ready(run(x, plan=np.array(words, np.int64)))

    def test_a_plan_that_does_not_fit(self, gpu):
        jax.block_until_ready(attend(*calls.arrays_of(T=5)[:3]))
        digest, number = compiled.package().digest, compiled._added(f"{calls.TINY}/mark_keys-bfloat16-16-16")
        self.call([digest, number, 1, 2, 0, 1, 1, 45])
        bad = {
            "the plan of a launch ends too soon": ([], [digest, number], [digest, number, 1, 2, 0, 1, 1]),
            "a launch has no such array": ([digest, number, 1, 2, 0, 2, 0], [digest, number, 1, 1, -1, 0]),
            "kernels that this process has not loaded": ([digest + 1, number, 1, 0, 0], [digest, 9999, 1, 0, 0]),
            "a launch of more blocks than CUDA takes": ([digest, number, 2**31, 0, 0], [digest, number, 0, 0, 0]),
        }
        for message, plans in bad.items():
            for words in plans:
                with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                    self.call(words)


class TestWhereItCannotRun:
    ARRAYS = calls.arrays_of(D=64, V=64)[:3]

    def refused(self, **options):
        with pytest.raises(NotImplementedError) as caught:
            attend(*self.ARRAYS, **options)
        return str(caught.value)

    @pytest.mark.smoke
    def test_without_a_gpu(self, no_package):
        assert self.refused().splitlines() == [
            "attention: implementation 'triton' cannot run here: JAX finds no NVIDIA GPU (it finds: cpu); "
            "the package attendax-gpu is not installed.",
            "Leave implementation out: the tiles take every call, on every device.",
        ]

    def test_the_package_without_a_gpu(self, package):
        count = len(compiled.package().kernels)
        assert count > 100
        assert f"no NVIDIA GPU (it finds: cpu); the package attendax-gpu has {count} kernels." in self.refused()

    @pytest.mark.parametrize(
        ("capability", "target"),
        [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((12, 0), "sm_120")],
    )
    def test_the_target_of_a_gpu(self, monkeypatch, capability, target):
        monkeypatch.setattr(cudnn, "capability", lambda: capability)
        assert compiled.target() == target

    @pytest.mark.parametrize("capability", [(7, 5), (10, 3), (12, 1)])
    def test_on_another_gpu(self, monkeypatch, capability):
        monkeypatch.setattr(cudnn, "capability", lambda: capability)
        wanted = "there are kernels for compute capability 8.0, 8.6, 8.7, 8.9, 9.0, 10.0 and 12.0; the GPU has "
        assert f"{wanted}{capability[0]}.{capability[1]}; the package" in self.refused()

    def test_without_the_package(self, no_package, monkeypatch):
        monkeypatch.setattr(cudnn, "capability", lambda: (9, 0))
        assert self.refused().splitlines() == [
            "attention: implementation 'triton' cannot run here: the package attendax-gpu is not installed.",
            'pip install "attendax[gpu]"',
        ]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "the package attendax-gpu is broken: JSONDecodeError: "),
            ("[]", "the package attendax-gpu is broken: TypeError: "),
            ("{}", "the package attendax-gpu is broken: KeyError: 'kernels'"),
            ('{"kernels": {}, "source": ""}', "the package attendax-gpu was made for another version of attendax"),
        ],
    )
    def test_a_package_that_is_not_right(self, package, monkeypatch, text, reason):
        monkeypatch.setattr(cudnn, "capability", lambda: (8, 6))
        (package / compiled.INDEX).write_text(text)
        assert compiled.why_not().startswith(reason)

    def test_a_package_that_lacks_a_file(self, package, monkeypatch):
        monkeypatch.setattr(cudnn, "capability", lambda: (8, 6))
        sorted(package.rglob("*.cubin"))[0].unlink()
        assert compiled.why_not().startswith("the package attendax-gpu is broken: it lacks sm_90/forward-bfloat16-")

    def test_without_the_native_library(self, package, monkeypatch):
        monkeypatch.setattr(cudnn, "capability", lambda: (8, 6))
        monkeypatch.setattr(compiled, "library", lambda: Library("", "the library was not built"))
        fake_gpu.forget()
        assert compiled.why_not().endswith("which launches kernels, is not used: the library was not built")

    def test_a_program_for_another_platform(self, gpu, monkeypatch):
        from attendax.kernels import gpu as module

        monkeypatch.setattr(module, "PLATFORM", "cuda")
        with pytest.raises(NotImplementedError, match="this call: it is for CUDA; this program is for cpu"):
            jax.jit(attend)(*calls.arrays_of()[:3])

    def test_an_exported_program(self, gpu):
        """It would carry numbers of kernels that another process has not loaded. Without a name it exports tiles."""
        query, key, value = map(jnp.asarray, calls.arrays_of(T=5)[:3])
        with pytest.raises(NotImplementedError, match="an exported program, which may run without the kernels"):
            jax.export.export(jax.jit(attend))(query, key, value)
        exported = jax.export.export(jax.jit(attention), platforms=["cuda"])(query, key, value)
        assert compiled.TARGET not in exported.mlir_module()

    def test_a_sequence_on_several_devices(self, gpu, monkeypatch):
        call = checked_call("attention", *calls.arrays_of()[:3], implementation="triton")
        monkeypatch.setattr(across.lax, "axis_size", lambda axis: 2)
        with pytest.raises(NotImplementedError, match="needs all tokens of a head; here they are divided over seq"):
            across.attend_across_devices(call, ("seq",), "ring")


def test_the_program_for_cuda_calls_the_launcher(package, monkeypatch):
    """Lowered without a GPU: a forward and, for gradients, one call more."""
    fake_gpu.the_gpu()
    monkeypatch.setattr(cudnn, "capability", lambda: (9, 0))
    shape = jax.ShapeDtypeStruct((2, 8, 1024, 128), jnp.bfloat16)

    def lowered(function):
        text = jax.jit(function).trace(shape, shape, shape).lower(lowering_platforms=("cuda",)).as_text()
        return text.count(f"custom_call @{compiled.TARGET}")

    def loss(*a):
        return attention(*a, mask=masks.causal(), implementation="triton").astype(jnp.float32).sum()

    assert lowered(loss) == 1
    assert lowered(jax.grad(loss, (0, 1, 2))) == 2


class TestExplain:
    def test_a_call_that_did_not_ask(self):
        arrays = calls.arrays_of(D=64, V=64)[:3]
        wanted = "runs only if you name it, because it has not been timed on a GPU; it cannot run here: JAX finds no"
        assert explain(*arrays).impossible["triton"].startswith(wanted)
        wide = calls.arrays_of(D=257)[:3]
        assert explain(*wide).impossible["triton"] == "not eligible: D = 257 and V = 16: it takes up to 256"

    def test_a_call_that_asked(self, gpu):
        found = explain(*calls.arrays_of()[:3], implementation="triton")
        assert (found.implementation, found.tile) == ("triton", None)
        assert "requested; forward and gradient by Triton kernels" in str(found)
        assert "triton" not in found.impossible


NOT_ELIGIBLE = {
    "a bias": ({}, {"bias": np.zeros((37, 45))}, "float64 with narrower queries"),
    "a width": ({"D": 260}, {}, "D = 260 and V = 64: it takes up to 256"),
    "a function of scores": (
        {},
        {"score_mod": scores.from_function(lambda s, at: 2 * s)},
        "a score modifier of the kind 'function'; it takes softcap, ALiBi, relative bias",
    ),
    "a softcap after ALiBi": (
        {},
        {"score_mod": scores.compose(scores.alibi(np.float32([1, 2])), scores.softcap(3.0))},
        "a softcap after another score modifier",
    ),
    "two softcaps": (
        {},
        {"score_mod": scores.compose(scores.softcap(3.0), scores.softcap(2.0))},
        "two score modifiers of one kind: softcap",
    ),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", NOT_ELIGIBLE)
def test_a_call_that_the_kernels_do_not_take(name):
    from attendax.kernels import gpu as module

    sizes, options, wanted = NOT_ELIGIBLE[name]
    query, key, value, *_ = (x for x in calls.arrays_of(**{"D": 64, "V": 64} | sizes))
    call = checked_call("attention", query, key, value, **options)
    assert wanted in module.of_call(call.operands, call.plan)


def test_each_kernel_of_a_call_is_one_that_is_compiled():
    for target in launches.TARGETS:
        names = {launch.name for launch in launches.every_launch(target)}
        for modified in (False, True):
            sizes = launches.Sizes(3, 8, 2, 1000, 777, 128, "float16", target, True, True, True, modified)
            of_bias = (False, True, True, False) if modified else None
            for program in (sizes.forward(), sizes.gradients(True, of_bias)):
                assert {launch.name for launch in program.launches} <= names


def test_long_caches_of_few_queries_are_added_in_parts():
    """At a time, each by blocks of its own; of many queries one after the other. Memory is there for their sums."""
    few, many = (launches.Sizes(1, 8, 2, T, 3 * launches.PART + 1, 128, "bfloat16", "sm_90") for T in (1, 5000))
    one = few._replace(S=launches.PART)
    names = {sizes: [x.kernel for x in sizes.forward().launches[1:]] for sizes in (one, few, many)}
    part = ["forward"] * 2
    assert names == {one: part, few: [*part, "join_parts"], many: [*part, *[*part, "join_parts"] * 3]}
    assert [sizes.forward().launches[1].blocks for sizes in (one, few, many)] == [8, 32, 320]
    shapes = [sizes.forward().inner["sums"][0] for sizes in (one, few, many)]
    assert shapes == [(1,) * 5, (1, 8, 4, 1, 128), (1, 8, 2, 5000, 128)]
    for tables in (*launches.TILES.values(), *launches.TILES_OF_MODIFIED.values()):
        assert all(launches.PART % tiles.keys == 0 for tiles in tables["forward"])


def test_the_table_of_what_was_compiled(tmp_path):
    entry = {"registers": 255, "spills": 8, "shared": 3 << 10, "products": "mma", "care": False}
    names = (
        "sm_80/forward-bfloat16-64-64-128-64-1-0",
        "sm_80/forward-bfloat16-64-64-128-64-1-1",
        "sm_90/mark_keys-float16-128-64",
    )
    entries = dict(zip(names, (entry, entry | {"care": True, "spills": 70}, entry | {"products": ""}), strict=True))
    assert build.table(entries).splitlines()[2:] == [
        f"| bfloat16: forward, modified | 255; 8; 3; mma (70) |{'  |' * 11}",
        f"| float16: mark keys |{'  |' * 4} 255; 8; 3 |{'  |' * 7}",
    ]
    for name in names[:2]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.cubin").write_bytes(bytes(1 << 20))
    of_sm_80 = {name: entry for name, entry in entries.items() if name in names[:2]}
    *_, row = build.summary(of_sm_80, tmp_path).splitlines()
    assert row == "| sm_80 | 8.0, 8.6, 8.7, 8.9 | 2 | 2.0 | 8 | 70 | 3 of 99 | mma |"


def test_nothing_but_the_build_imports_triton():
    package = compiled.HERE.parents[1]
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    there = [name for name, text in texts.items() if re.search(r"^\s*(import|from) triton", text, re.M)]
    of_triton = [f"kernels/gpu/{name}" for name in compiled.SOURCES[:-1]]
    assert sorted(there) == sorted(["kernels/gpu/build.py", *of_triton])
    of_kernels = re.compile(r"(gpu|\.) import (kernels|pairs|rows|bias)|gpu\.(kernels|pairs|rows|bias)")
    assert {name for name, text in texts.items() if of_kernels.search(text)} - {*of_triton} == {"kernels/gpu/build.py"}


class TestNumbers:
    """The whole way, with the kernels in Triton's interpreter behind the driver."""

    @pytest.mark.parametrize("dtype", launches.DTYPES)
    def test_out_and_gradients(self, gpu, dtype):
        reason = "triton is not installed; .ci/gpu has it"
        interpreted = pytest.importorskip("interpreted", reason=reason, exc_type=ImportError)
        kernels = calls.the_kernels()

        def on_launch(launched):
            launch = launched.launch._replace(blocks=launched.blocks, numbers=launched.numbers)
            interpreted.launch(kernels, launch, launched.addresses)

        gpu.on_launch = on_launch
        arrays, options = calls.arrays_of(dtype), {"mask": masks.segments(*calls.IDS) & masks.causal(2)}
        calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), dtype)
        if dtype == "bfloat16":
            options, sizes = calls.options_of("everything")
            arrays = calls.arrays_of(**sizes)
            calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), dtype)
            assert "gradient_of_bias" in {one.kernel for one in gpu.launched}
