"""The native kernel called by devices, threads and loops at once, and where a process forks: no call waits for ever."""

import os
import threading

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attendax import attention, masks
from attendax.kernels import native
from processes import in_a_process

pytestmark = pytest.mark.skipif(not native.library().isa, reason=native.status())
LIMIT = 240  # seconds; without another process on the machine it takes 5
FLAGS = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def test_eight_devices_at_once(rng):
    """Every device its own call, none awaited before the last is sent: the bits of one call alone."""
    host = rng.normal(size=(2, 4, 200, 16)).astype(np.float32)
    step = jax.jit(jax.value_and_grad(lambda x: (attention(x, x, x, mask=masks.causal()) ** 2).sum()))
    expected = step(host)
    placed = [jax.device_put(host, device) for device in jax.devices()]
    for _ in range(3):
        for one in [step(x) for x in placed]:
            jax.tree.map(np.testing.assert_array_equal, one, expected)


def test_calls_that_wait_for_each_other(rng):
    """Every device computes, sends on what it has, and computes again: a call that holds all threads would stop it."""
    mesh = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,))
    host = rng.normal(size=(8, 2, 130, 16)).astype(np.float32)
    ring = [(k, (k + 1) % 8) for k in range(8)]

    def step(x, _):
        return jax.lax.ppermute(attention(x, x, x, mask=masks.causal()), "all", ring), None

    def here(x):
        return jax.lax.scan(step, x, None, length=8)[0]

    found = jax.jit(jax.shard_map(here, mesh=mesh, in_specs=P("all"), out_specs=P("all")))(host)
    expected = host
    for _ in range(8):
        expected = attention(expected, expected, expected, mask=masks.causal())
    np.testing.assert_array_equal(found, expected)  # each part is back where it began


def test_threads_of_one_process(rng):
    host = rng.normal(size=(1, 4, 300, 8)).astype(np.float32)
    step = jax.jit(jax.grad(lambda x: (attention(x, x, x) ** 2).sum()))
    expected, found = np.asarray(step(host)), {}

    def call(k):
        found[k] = [np.asarray(step(jax.device_put(host, jax.devices()[(k + i) % 8]))) for i in range(3)]

    threads = [threading.Thread(target=call, args=(k,), daemon=True) for k in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LIMIT)
    assert len(found) == len(threads)
    for each in found.values():
        for one in each:
            np.testing.assert_array_equal(one, expected)


THREADS = """
    import threading
    import jax, numpy as np
    from attendax import attention, masks
    host = np.random.default_rng(0).normal(size=(2, 2, 260, 32)).astype(np.float32)
    forward = jax.jit(lambda x: attention(x, x, x, mask=masks.causal()))
    step = jax.jit(jax.grad(lambda x: (forward(x) ** 2).sum()))
    expected, right = np.asarray(step(host)), []
    start = threading.Barrier(64)
    def call(k):
        x = jax.device_put(host, jax.devices()[k % 8])
        start.wait()
        right.append(all(np.array_equal(step(x), expected) for _ in range(4)))
    threads = [threading.Thread(target=call, args=(k,)) for k in range(64)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(sum(right))
"""

FORKS = """
    import os
    import jax, numpy as np
    from attendax import attention
    host = np.random.default_rng(0).normal(size=(2, 4, 260, 32)).astype(np.float32)
    step = jax.jit(jax.grad(lambda x: (attention(x, x, x) ** 2).sum()))
    expected = np.asarray(step(host))
    for _ in range(4):
        running = [step(jax.device_put(host, device)) for device in jax.devices()]
        child = os.fork()
        if not child:
            os._exit(int(host.sum() > 1e9))
        print(all(np.array_equal(x, expected) for x in running), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_64_threads():
    assert in_a_process(THREADS, timeout=LIMIT, **FLAGS) == ["64"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_forks():
    """A child that leaves JAX alone ends, and the parent's calls go on."""
    assert in_a_process(FORKS, timeout=LIMIT, **FLAGS) == ["True 0"] * 4
