"""``bench --devices``: what a sequence of 32,768 tokens costs each of 1, 2, 4, 8 devices, by strategy.

Temporaries and bytes are XLA's own, of the compiled program, whatever else the machine does. Times depend on that;
they stand beside those of a ``shard_map`` of one's own around ``jax.nn``. The devices are played by the processor; this
file starts itself in a process that has eight of them.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from attendax import writing

DEVICES, MOST = (1, 2, 4, 8), 8
HEADS, WIDTH, LENGTH = 8, 64, 32_768
STRATEGIES = ("ring", "all_gather", "ulysses")
FLAG = "--xla_force_host_platform_device_count"


def main(output: str | None = None, length: int = LENGTH) -> int:
    """Measure in a process of eight devices, print the tables, and write them."""
    environment = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAG}={MOST}".strip()}
    command = [sys.executable, str(Path(__file__)), "--length", str(length)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return done.returncode
    results = json.loads(done.stdout)
    text = page(results)
    print(text)
    if output:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        writing.write(folder / "devices.json", json.dumps(results, indent=1) + "\n")
        writing.write(folder / "devices.md", text)
    return 0


def measured(length: int) -> dict[str, Any]:
    """Records of every strategy and number of devices, and the balance of the two orders."""
    import jax

    records = []
    for count in DEVICES:
        for strategy in STRATEGIES if count > 1 else ("ring",):
            for direction in ("forward", "gradient"):
                records.append(record(strategy, count, direction, length))
                print(records[-1], file=sys.stderr, flush=True)
    orders = [{"order": order, "devices": n, "balance": balance(order, n)} for order in ORDERS for n in DEVICES[1:]]
    return {
        "length": length,
        "heads": HEADS,
        "width": WIDTH,
        "jax": jax.__version__,
        "records": records,
        "orders": orders,
        "times": times(),
    }


def record(strategy: str, count: int, direction: str, length: int) -> dict[str, Any]:
    """The bytes that the compiled program of one device needs and receives."""
    import jax
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    from attendax import masks, sharding

    sys.path.append(str(Path(__file__).parents[1] / "tests" / "engine"))
    from collectives import bytes_received

    mesh = jax.make_mesh((count,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    tokens, places = P(None, "seq"), P("seq")

    def here(query, key, value, positions):
        options = {"axis_name": "seq", "positions": positions, "strategy": strategy, "mask": masks.causal()}
        return sharding.attention(query, key, value, **options)

    attend = jax.shard_map(here, mesh=mesh, in_specs=(tokens, tokens, tokens, places), out_specs=tokens)

    def gradient(query, key, value, positions, dout):
        return jax.vjp(lambda *leaves: attend(*leaves, positions), query, key, value)[1](dout)

    x = jax.ShapeDtypeStruct((HEADS, length, WIDTH), "float32")
    positions = jax.ShapeDtypeStruct((length,), "int32")
    given = (x, x, x, positions) if direction == "forward" else (x, x, x, positions, x)
    compiled = jax.jit(attend if direction == "forward" else gradient).lower(*given).compile()
    return {
        "strategy": strategy,
        "devices": count,
        "direction": direction,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "received": bytes_received(compiled),
    }


ROUNDS = 9
THEIRS = "shard_map of jax.nn"


def times(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Seconds of attention on eight devices, and how many times those of a ``shard_map`` around ``jax.nn``."""
    import harness

    records = []
    for case, contestants in {"batch and heads": on_batch_and_heads, "tokens": on_tokens}.items():
        for direction in ("forward", "gradient"):
            runs = [harness.Contestant(name, call) for name, call in contestants(direction).items()]
            for one in runs:
                one.call()  # compiled
            measured = harness.measure(runs, rounds=rounds)
            for name, timing in measured.items():
                ratio = timing.ratio_to(measured[THEIRS]).median
                record = {"case": case, "direction": direction, "name": name, "seconds": timing.median, "ratio": ratio}
                records.append(record | {"disturbed": timing.disturbed})
                print(records[-1], file=sys.stderr, flush=True)
    return records


def on_batch_and_heads(direction: str) -> dict[str, Any]:
    """Calls of 8 batches, 8 heads, 1,024 tokens of 64, causal, on a mesh of 4 x 2."""
    from jax.sharding import PartitionSpec as P

    import attendax

    mesh, spec = mesh_of((4, 2), ("data", "model")), P("data", "model")
    ours = functools.partial(attendax.attention, mask=attendax.masks.causal())
    theirs = divided(functools.partial(of_jax_nn, is_causal=True), mesh, spec)
    return calls({"attendax under jit": ours, THEIRS: theirs}, direction, (8, 8, 1024, 64), mesh, spec)


def on_tokens(direction: str) -> dict[str, Any]:
    """Calls of 8 heads, 2,048 tokens of 64 on eight devices; theirs gathers the keys."""
    from jax import lax
    from jax.sharding import PartitionSpec as P

    from attendax import sharding

    mesh, spec = mesh_of((8,), ("seq",)), P(None, None, "seq")

    def gathered(query, key, value):
        key, value = (lax.all_gather(x, "seq", axis=2, tiled=True) for x in (key, value))
        return of_jax_nn(query, key, value)

    by = functools.partial(sharding.attention_on_mesh, mesh=mesh, axis_name="seq")
    functions = {name: functools.partial(by, strategy=name) for name in STRATEGIES}
    return calls(functions | {THEIRS: divided(gathered, mesh, spec)}, direction, (1, 8, 2048, 64), mesh, spec)


def mesh_of(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """Eight devices with Auto axes."""
    import jax
    from jax.sharding import AxisType

    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def divided(function: Any, mesh: Any, spec: Any) -> Any:
    """A ``shard_map`` as one writes it oneself."""
    import jax

    return jax.shard_map(function, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)


def of_jax_nn(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """``jax.nn`` has heads behind tokens."""
    import jax

    arrays = (x.swapaxes(1, 2) for x in (query, key, value))
    return jax.nn.dot_product_attention(*arrays, **options).swapaxes(1, 2)


def calls(functions: dict[str, Any], direction: str, shape: tuple[int, ...], mesh: Any, spec: Any) -> dict[str, Any]:
    """Calls of each function, or of its gradient, on arrays that lie on the mesh; each waits for its result."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding

    rng = np.random.default_rng(0)
    host = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    *arrays, dout = jax.device_put(host, NamedSharding(mesh, spec))

    def runner(function: Any) -> Any:
        def gradient(dout, *arrays):
            return jax.vjp(function, *arrays)[1](dout)

        run = jax.jit(function) if direction == "forward" else functools.partial(jax.jit(gradient), dout)
        return lambda: jax.block_until_ready(run(*arrays))

    return {name: runner(function) for name, function in functions.items()}


ORDERS = ("contiguous", "zigzag")


def balance(order: str, count: int) -> float:
    """Time in lock step over ideal: what the busiest device does in each hop of a ring, over all work divided evenly.

    In tiles of the kernels' size, of which a causal mask leaves some out.
    """
    import numpy as np

    from attendax import sharding
    from attendax.kernels.blockwise.partition import LIMITS

    size = LIMITS.rows
    positions = np.asarray(sharding.positions(LENGTH, count, order)).reshape(count, -1, size)
    least, most = positions.min(-1), positions.max(-1)
    seen = np.array([[(most[i][:, None] >= least[j][None]).sum() for j in range(count)] for i in range(count)])
    hops = [max(seen[i, (i - k) % count] for i in range(count)) for k in range(count)]
    return float(sum(hops) * count / seen.sum())


def page(results: dict[str, Any]) -> str:
    """The tables as Markdown."""
    by = {(r["strategy"], r["devices"], r["direction"]): r for r in results["records"]}
    shape = f"{results['length']:,} tokens, {results['heads']} heads of {results['width']}, float32, causal"
    note = "MB of one device, forward / forward and gradient; received: except what a condition on the data decides."
    lines = [f"# A sequence on several devices\n\n{shape}; jax {results['jax']}.\n", f"{note}\n"]
    counts = sorted({r["devices"] for r in results["records"]})
    for what, name in (("temporaries", "Temporaries"), ("received", "Received")):
        lines.append(f"| {name} | " + " | ".join(f"n = {n}" for n in counts) + " |")
        lines.append("|---" * (len(counts) + 1) + "|")
        for strategy in STRATEGIES:
            cells = []
            for n in counts:
                both = [by.get((strategy if n > 1 else "ring", n, d)) for d in ("forward", "gradient")]
                cells.append(" / ".join(f"{r[what] / 1e6:.1f}" for r in both if r))
            lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
        lines.append("")
    counts = sorted({r["devices"] for r in results["orders"]})
    lines.append("Time in lock step over ideal, in tiles that a causal mask leaves in:\n")
    lines.append("| order | " + " | ".join(f"n = {n}" for n in counts) + " |")
    lines.append("|---" * (len(counts) + 1) + "|")
    for order in ORDERS:
        cells = [f"{r['balance']:.2f}" for r in results["orders"] if r["order"] == order]
        lines.append(f"| {order} | " + " | ".join(cells) + " |")
    return "\n".join(lines + table_of_times(results.get("times", []))) + "\n"


def table_of_times(records: list[dict[str, Any]]) -> list[str]:
    """Milliseconds, and the ratio to what one writes oneself."""
    if not records:
        return []
    note = "Batch and heads: 8 x 8 heads, 1,024 tokens, causal; tokens: 8 heads, 2,048 tokens; heads of 64, float32."
    if disturbed := sum(r["disturbed"] > 0 for r in records):
        note += f" Other processes took the cores while {disturbed} of {len(records)} were measured."
    lines = [f"\nMilliseconds on eight devices that two cores play, and how many times those of {THEIRS}. {note}\n"]
    lines += ["| divided | by | forward | forward and gradient |", "|---|---|---|---|"]
    rows = {(r["case"], r["name"]): {} for r in records}
    for r in records:
        rows[r["case"], r["name"]][r["direction"]] = f"{1e3 * r['seconds']:.0f} ({r['ratio']:.2f})"
    return lines + [f"| {case} | {name} | {x['forward']} | {x['gradient']} |" for (case, name), x in rows.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--times", action="store_true", help="only the times")
    arguments = parser.parse_args()
    print(json.dumps(times() if arguments.times else measured(arguments.length)))
