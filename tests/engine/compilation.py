"""How a test compiles: with ``jax.jit``, as users do, or ``quickly``.

Most of the suite's time is XLA's, and most of that goes into making code fast which runs once, on arrays of a hundred
numbers. Compiled ``quickly``, a third derivative takes 3 seconds, not 10. The program is the same: what JAX has traced,
and XLA's own simplifications of it. Not the same are the machine's instructions and what is fused, so the last bit.

So ``quickly`` is for tests in float64 of what is computed: derivatives, tiles, masks. Laws that are about rounding or
about what XLA makes of a program stay with ``jax.jit``: L7 (fused multiply-adds), L8, L15, memory, and poison (L6) in
results and first derivatives; and whatever is in float32.

XLA may make another program of it that is wrong. So what runs ``quickly`` has a partner which
compiles the same with all optimisation, in float32, with losses as users write them:

- ``test_every_law_of_a_call.py``: first and second derivatives, vmap, scan, checkpoint (``test_laws``,
  ``test_cross_validation``), and tiles with every option (``test_tiles``);
- ``test_any_context.py``: layers and blocks (``judges.twin_of``, ``test_encoders``), and what ``attention_stats`` says
  (``test_inspection``).
"""

import contextlib
import functools
from unittest import mock

import jax
from jax._src import compiler  # a step outside jit takes no compiler options

OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):  # later there is no other emitter of fused loops; the older takes half the time
    OPTIONS["xla_cpu_use_fusion_emitters"] = False

quickly = functools.partial(jax.jit, compiler_options=OPTIONS)
_QUICK = jax.make_user_context(False)  # so that no step compiled quickly is found again elsewhere


def temporaries(function, *shapes):
    """The bytes that a compiled function needs beside its arrays of float32 and its results."""
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


@contextlib.contextmanager
def quick_steps():
    """Within it, the steps of what runs outside jit, a program each, are compiled ``quickly``."""
    options = compiler.get_compile_options

    def quick(*args, **given):
        return options(*args, **given | {"env_options_overrides": OPTIONS | (given["env_options_overrides"] or {})})

    with _QUICK(True), mock.patch.object(compiler, "get_compile_options", quick):
        yield


def kept(primitive):
    """The cache in which the programs of a primitive stay compiled, outside jit."""
    (run,) = (x for x in _closed_over(primitive.impl) if getattr(x, "__name__", "") == "run")
    (cache,) = (x for x in _closed_over(run) if hasattr(x, "cache_info"))
    return cache


def _closed_over(function):
    return [cell.cell_contents for cell in function.__closure__]
