"""Attention over two processes of two devices each: the sequence goes round a ring that crosses the processes.

    python docs/examples/two_processes.py

The parent starts both and watches them. When one of them dies, the other's collective fails at once; it says so in one
line and leaves, and the parent ends the rest. One that only stalls is found by the heartbeat, or by the time limit.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import time

HEARTBEAT = 10  # seconds until a process that is silent counts as dead


def train(process: int, port: int, steps: int, fault: str) -> None:
    """Train, in each of the two: steps of gradient descent on a sequence that lies on all four devices.

    The fault, "dies" or "stalls", comes after two steps.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    address = f"127.0.0.1:{port}"
    bound = {"coordinator_bind_address": address} if process == 0 else {}
    jax.distributed.initialize(address, 2, process, heartbeat_timeout_seconds=HEARTBEAT, **bound)

    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from attendax import masks, sharding, spec

    mesh = jax.make_mesh((4,), ("seq",), axis_types=(AxisType.Auto,))
    T, tokens, places = 64, P(None, "seq"), P("seq")
    rng = np.random.default_rng(0)
    host = [rng.normal(size=(2, T, 8)).astype(np.float32) for _ in range(3)]
    order = np.asarray(sharding.positions(T, 4))

    def placed(x, part):
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, part), lambda index: x[index])

    query, key, value = (placed(x[:, order], tokens) for x in host)
    positions = placed(order, places)  # an argument, as masks are: a constant would have to be the same everywhere

    def here(query, key, value, positions):
        return sharding.attention(
            query, key, value, axis_name="seq", positions=positions, strategy="ring", mask=masks.causal()
        )

    attend = jax.shard_map(here, mesh=mesh, in_specs=(tokens, tokens, tokens, places), out_specs=tokens)

    @jax.jit
    def step(query, key, value, positions):
        loss, slope = jax.value_and_grad(lambda query: jnp.sum(attend(query, key, value, positions) ** 2))(query)
        return query - 0.01 * slope, loss

    right = spec.attention(*host, mask=masks.causal())[:, order]
    out = jax.jit(attend)(query, key, value, positions)
    error = max(float(np.abs(np.asarray(part.data) - right[part.index]).max()) for part in out.addressable_shards)
    print(f"process {process}: largest difference from the specification {error:.1e}", flush=True)
    assert error < 1e-5
    for k in range(steps):
        if fault and k == 2:
            print(f"process {process} {fault}", flush=True)
            os._exit(9) if fault == "dies" else os.kill(os.getpid(), signal.SIGSTOP)
        query, loss = step(query, key, value, positions)
        jax.block_until_ready(loss)
    print(f"process {process}: loss {float(loss):.4f} after {steps} steps", flush=True)
    jax.distributed.shutdown()


def worker(arguments: argparse.Namespace) -> None:
    """Train; on an error say so in one line and leave at once, for a shutdown would wait for who is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a runtime that gives up aborts, and would dump its memory
    fault = "dies" if arguments.process == arguments.dies else "stalls" if arguments.process == arguments.stalls else ""
    try:
        train(arguments.process, arguments.port, arguments.steps, fault)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else ""
        print(f"process {arguments.process}: stopped, {type(error).__name__}: {first}", file=sys.stderr, flush=True)
        os._exit(1)


def parent(arguments: argparse.Namespace) -> int:
    """Start both, wait, and end what is left when one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--port", str(port), "--steps", str(arguments.steps)]
    for name, which in (("--dies", arguments.dies), ("--stalls", arguments.stalls)):
        command += [] if which is None else [name, str(which)]
    workers = [subprocess.Popen([*command, "--process", str(k)]) for k in range(2)]
    end = time.monotonic() + arguments.limit
    try:
        while True:
            codes = [one.poll() for one in workers]
            if failed := [k for k, code in enumerate(codes) if code]:
                print(f"process {failed[0]} ended with status {codes[failed[0]]}: the job ends", file=sys.stderr)
                return 1
            if all(code == 0 for code in codes):
                return 0
            if time.monotonic() > end:
                print(f"no end after {arguments.limit} seconds: the job ends", file=sys.stderr)
                return 1
            time.sleep(0.1)
    finally:
        for one in workers:
            if one.poll() is None:
                one.kill()
            one.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--dies", type=int, help="the process that dies, to see what happens")
    parser.add_argument("--stalls", type=int, help="the process that stops without dying")
    parser.add_argument("--limit", type=int, default=120, help="seconds for everything")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process is None:
        sys.exit(parent(arguments))
    worker(arguments)
