"""The causes of faults in tokamax 0.0.12 and mlx 0.32.4, as ``findings`` has them; every script was run, and fails."""

from ..documented import Known

API, BASE = (f"tokamax/_src/ops/attention/{file}" for file in ("api.py", "base.py"))
HEADER = """
from absl import flags
import jax, jax.numpy as jnp, tokamax
flags.FLAGS(["tokamax"])
"""
WINDOW = """
query, key = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 6, 1, 8))
print(tokamax.dot_product_attention(query, key, key, local_window_size=2, implementation="xla").shape)  # ValueError
"""
FUTURE = """
ones, values = jnp.ones((1, 3, 1, 1)), jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
bias = jnp.where(jnp.arange(3) < 2, jnp.finfo("float32").min, 0.0).reshape(1, 1, 1, 3)
out = tokamax.dot_product_attention(ones, ones, values, bias=bias, is_causal=True, implementation="xla")
print("row 0 may see key 0 alone, whose value is 1; got", float(out[0, 0, 0, 0]))
assert abs(out[0, 0, 0, 0] - 1) < 1e-6
"""
ONES = """
query, key = (jax.random.normal(jax.random.key(k), (2, 12, 197, 64)) for k in range(2))
@jax.jit
def attend(query, key):
    value, (query, key) = jnp.ones((2, 12, 197, 64)).swapaxes(1, 2), (x.swapaxes(1, 2) for x in (query, key))
    return tokamax.dot_product_attention(query, key, value, implementation="xla").swapaxes(1, 2)
out = attend(query, key)
print("weights sum to 1, so the average of ones is 1; got", float(out.min()), "to", float(out.max()))
assert abs(out - 1).max() < 1e-3
"""
SECOND = """
x = jax.random.normal(jax.random.key(0), (1, 4, 1, 8))
def loss(query):
    return tokamax.dot_product_attention(query, x, x, implementation="xla").sum()
print(jax.grad(lambda query: jax.grad(loss)(query)[0, 0, 0, 0])(x).shape)  # ValueError: Linearization failed
"""
EMPTY = """
query, empty = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 0, 1, 8))
print(tokamax.dot_product_attention(query, empty, empty, implementation="xla").shape)  # ValueError: zero-size array
"""


def tokamax(
    name: str, kind: str, cases: tuple[str, ...], where: str, report: str, script: str, found: str = ""
) -> Known:
    """A cause, with its script."""
    return Known(name, kind, cases, found, where, report, (HEADER + script.lstrip()).lstrip())


TOKAMAX = (
    tokamax(
        "a bias of finfo.min lets rows see masked keys (tokamax)", "wrong numbers", ("bias of finfo.min*",),
        f"{BASE}:625, masked scores are finfo.min, no lower than the bias",
        "The common idiom for padding, a bias of `finfo.min`, is the same number as masked scores. A row whose allowed "
        "keys are all padded then spreads over the future as well. The comment above the line says why it is not -inf; "
        "`jnp.where` of the weights after the softmax would do.", FUTURE,
    ),
    tokamax(
        "a value of ones in the program gives garbage: XLA's CPU compiler (tokamax)", "wrong numbers",
        ("value of ones*",), f"{BASE}:633, a product with a constant that XLA:CPU miscompiles",
        "With a value that the compiler knows, XLA:CPU of jax 0.10.2 returns garbage (inf, NaN). It is XLA's fault.",
        ONES,
    ),
    tokamax(
        "a local window raises where T != S", "crash",
        ("window wider than the keys", "window with a mask", "empty row by a window", "leak: NaN outside the window"),
        f"{API}:161, k_indices = jnp.arange(key.shape[-3])",
        "`k_start` and `k_end` of a mask are bounds for each query, but `local_window_size` makes them with the number "
        "of keys, so that any call with T != S raises a broadcasting error. `jnp.arange(query.shape[-3])` is meant.",
        WINDOW,
    ),
    tokamax(
        "reverse over reverse raises", "crash", ("second order: *",),
        "tokamax.dot_product_attention, the gradient of its gradient; which line is not known",
        "`jax.grad` of a gradient raises `ValueError: Linearization failed to produce known values`, which does not "
        "say that second derivatives are not supported; forward over reverse works.", SECOND, "Linearization failed",
    ),
    tokamax(
        "no keys: the largest of none (tokamax)", "crash", ("no keys*", "gradient: no keys"), f"{BASE}:666",
        "With S = 0, `jnp.max` has no identity and raises ValueError; the sum over no keys is 0.", EMPTY,
    ),
    Known("a row with a bias of -inf everywhere is NaN", "robustness gap", ("*empty row by a bias of -inf",), "",
          f"{BASE}:667, -inf - (-inf)"),
)  # fmt: skip
MLX = (
    Known("a row with a bias of -inf everywhere is NaN", "robustness gap", ("*empty row by a bias of -inf",), "NaN",
          "mlx.core.fast.scaled_dot_product_attention on a CPU; its source was not read"),
    Known("scores of float16 overflow", "robustness gap", ("float16 of 300, D = 64",), "NaN",
          "mlx.core.fast.scaled_dot_product_attention on a CPU; its source was not read"),
)  # fmt: skip
KNOWN = {"tokamax-xla": TOKAMAX, "tokamax-xla_chunked": TOKAMAX, "mlx": MLX}
