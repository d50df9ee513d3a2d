"""The border of the library: arrays that do not fit, numbers that mean nothing, memory that cannot be had."""

import contextlib
import re
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import masks
from attendax.kernels import native
from attendax.kernels.call import checked_call
from attendax.kernels.native import program
from attendax.kernels.operands import Results
from native_calls import SHORT, Sizes, arrays, cotangents, needs_library, options
from native_driver import CSRC, missing
from processes import in_a_process

pytestmark = pytest.mark.law("L14", "native")

SIZES = Sizes(3, 6, 3, 5, 7, 4, 8)  # none is 2, so an axis of size 1 that becomes 2 fits nowhere
NAMES = (
    "segments", "traced offsets", "bias of queries", "none", "traced causal", "traced window", "padding", "dense",
    "dense for all keys", "bias", "alibi", "relative", "dropout",
)  # fmt: skip


@pytest.mark.smoke
def test_the_enums_of_python_are_those_of_the_source():
    source = (CSRC / "problem.h").read_text("utf-8")
    enums = {
        name: [word.strip().upper() for word in words.split(",")]
        for name, words in re.findall(r"enum class (\w+) : int \{(.*?)\};", source, re.DOTALL)
    }
    for name in ("MaskKind", "ModifierKind"):
        assert [getattr(program, word) for word in enums[name]] == list(range(len(enums[name])))
    assert {"WINDOW", "BLOCKS"} < set(enums["MaskKind"])


@contextlib.contextmanager
def recorded():
    """The calls of the library: (target, types, arrays, numbers) each."""
    calls, ffi_call = [], jax.ffi.ffi_call

    def record(target, types, **options):
        def call(*arrays, **numbers):
            found = ffi_call(target, types, **options)(*arrays, **numbers)
            calls.append((target, types, [*arrays], numbers))
            return found

        return call

    with mock.patch.object(jax.ffi, "ffi_call", record):
        yield calls


def calls_of(name):
    """The calls of a forward and its gradient, of a tangent and of a Hessian-vector product, with NumPy arrays."""
    given, found, chosen = arrays(SIZES, np.float32), cotangents(SIZES, np.float32), options(name, SIZES)
    if "bias" in chosen:
        chosen["bias"] = chosen["bias"].astype(np.float32)
    if "score_mod" in chosen:
        chosen["score_mod"] = jax.tree.map(lambda x: x if x.dtype == np.int32 else np.float32(x), chosen["score_mod"])
    operands, plan = checked_call("attention", *given, **chosen)
    with recorded() as calls:
        results = native.forward(operands, plan)
        wanted = [x.shape if jnp.issubdtype(x.dtype, jnp.floating) else None for x in operands.differentiable()]
        native.cotangent((found[0], found[1][..., None]), operands, Results(*results[:3]), plan, wanted)
    return calls


def changed(x):
    """(what was changed, the array with another size of an axis, another rank, or another dtype)."""
    for axis in range(x.ndim):
        yield f"axis {axis} is one longer", np.concatenate([x, x[(slice(None),) * axis + (slice(1),)]], axis)
    if x.ndim:
        yield "an axis is missing", x[0]
    yield "an axis more", x[None] if x.ndim else np.stack([x, x])
    yield "another dtype", np.zeros(x.shape, np.int16)
    yield "integers for real numbers, or the reverse", np.zeros(x.shape, "f4" if x.dtype.kind in "iub" else "i4")


def refused(target, types, arrays, numbers):
    """Whether the library refuses a call as wrong; any other error is the test's."""
    try:
        jax.block_until_ready(jax.ffi.ffi_call(target, types)(*arrays, **numbers))
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
    else:
        return False
    assert "INVALID_ARGUMENT: attendax: " in message
    return True


@needs_library
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_l14_an_array_that_does_not_fit_is_refused_before_it_is_read(name):
    calls = calls_of(name)
    assert [target for target, *_ in calls] == ["attendax_forward", "attendax_backward"]
    accepted = []
    for target, types, given, numbers in calls:
        assert not refused(target, types, given, numbers)
        for index in range(len(given)):
            for what, x in changed(np.asarray(given[index])):
                if not refused(target, types, [*given[:index], x, *given[index + 1 :]], numbers):
                    accepted.append((target, index, what))
        for index, shape in enumerate(types):
            for what, x in changed(np.zeros(shape.shape, shape.dtype)):
                of_modifier = len(shape.shape) < len(types[0].shape)  # its gradient is held to a count of numbers
                if of_modifier and what == "an axis more":
                    continue
                other = [*types[:index], jax.ShapeDtypeStruct(x.shape, x.dtype), *types[index + 1 :]]
                if not refused(target, other, given, numbers):
                    accepted.append((target, f"result {index}", what))
    assert accepted == []


@needs_library
@pytest.mark.parametrize("target", ["attendax_tangent", "attendax_hvp"])
def test_l14_directions_are_refused_as_well(target):
    z = SHORT["a folded group"]
    given, moved, found = arrays(z, np.float32), arrays(z, np.float32, seed=1), cotangents(z, np.float32)
    operands, plan = checked_call("attention", *given)
    with recorded() as calls:
        native.tangent(moved, operands, None, plan)
        grads = found[0], found[1][..., None]
        native.hvp(moved, grads, grads, operands, plan, [x.shape for x in given])
    ((_, types, arguments, numbers),) = [call for call in calls if call[0] == target]
    assert not refused(target, types, arguments, numbers)
    for index in range(len(arguments)):
        for what, x in changed(np.asarray(arguments[index])):
            assert refused(target, types, [*arguments[:index], x, *arguments[index + 1 :]], numbers), (index, what)


@needs_library
def test_l14_blocks_that_do_not_reach_the_last_query_or_key_are_refused():
    z = SIZES._replace(T=12, S=22)
    operands, plan = checked_call("attention", *arrays(z), mask=masks.blocks(np.ones((3, 4), bool), 5, 7))
    with recorded() as calls:
        native.forward(operands, plan)
    ((target, types, given, numbers),) = calls
    *others, blocks = given
    assert blocks.shape[-2:] == (3, 4)
    for fewer in (blocks[..., :2, :], blocks[..., :3]):
        assert refused(target, types, [*others, fewer], numbers)


@needs_library
@pytest.mark.parametrize(
    ("place", "number"), [(0, -1), (0, 25), (2, -1), (8, 9), (8, -1), (8, 0), (15, 3)], ids=lambda n: str(n)
)
def test_l14_integers_that_mean_nothing_are_refused(place, number):
    """The counts of the program of a mask, the kind of a step, and how many arrays it has."""
    (target, types, given, numbers), _ = calls_of("traced causal")
    ints = np.array(numbers["ints"])
    assert ints[8] == program.WINDOW
    ints[place] = number
    assert refused(target, types, given, numbers | {"ints": ints})


# Memory that cannot be had

PRELOAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>

// 0: there is memory for the library; 1: on no thread; 2: on the thread alone that asks first, the caller's.
int attendax_test_memory = 0;
static _Atomic long owner = 0;

void* aligned_alloc(size_t alignment, size_t size) {
  Dl_info caller;
  int of_library = dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libattendax");
  long none = 0, thread = syscall(SYS_gettid);
  if (of_library && attendax_test_memory == 1) return NULL;
  if (of_library && attendax_test_memory == 2 && !atomic_compare_exchange_strong(&owner, &none, thread) &&
      none != thread)
    return NULL;
  void* (*next)(size_t, size_t) = (void* (*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
  return next(alignment, size);
}
"""
CHILD = """
import ctypes, jax, numpy as np
from attendax import attention
memory = ctypes.c_int.in_dll(ctypes.CDLL(None), "attendax_test_memory")
x = np.random.default_rng(0).standard_normal((1, 2, 200, 1024)).astype(np.float32)
call = jax.jit(lambda q: attention(q, x, x, implementation="native"))
memory.value = 1
try:
    jax.block_until_ready(call(x))
except jax.errors.JaxRuntimeError as error:
    assert "RESOURCE_EXHAUSTED: attendax: out of memory" in str(error), error
else:
    raise AssertionError("there was memory")
memory.value = 2
alone = np.asarray(call(x))
memory.value = 0
assert alone.tobytes() == np.asarray(call(x)).tobytes()
print("it goes on")
"""


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_l14_a_process_without_memory_gets_an_error_and_goes_on(tmp_path):
    """The caller without memory raises; a helper without memory leaves its tasks to the others."""
    if absent := missing("cc"):
        pytest.skip(f"not installed: {absent}")
    (tmp_path / "memory.c").write_text(PRELOAD)
    library = tmp_path / "memory.so"
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "memory.c", "-o", library, "-ldl"], check=True)
    assert in_a_process(CHILD, LD_PRELOAD=str(library)) == ["it goes on"]
