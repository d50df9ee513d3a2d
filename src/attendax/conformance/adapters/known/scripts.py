"""Ten lines for each cause that gives wrong numbers or crashes; they know nothing of attendax and end in an error."""

FINFO = """
import jax, jax.numpy as jnp
ones = jnp.ones((1, 3, 1, 1))
values = jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
bias = jnp.where(jnp.arange(3) < 2, jnp.finfo("float32").min, 0.0).reshape(1, 1, 1, 3)
{0}
print("row 0 may see key 0 alone, whose value is 1; got", float(out[0, 0, 0, 0]))
assert abs(out[0, 0, 0, 0] - 1) < 1e-6
"""
TOKAMAX = """
from absl import flags
import jax, jax.numpy as jnp, numpy as np, tokamax
flags.FLAGS(["tokamax"])
"""
SCRIPTS = {
    "a window of the largest int32 sees wrong keys": """
import jax, jax.numpy as jnp
query = key = jnp.zeros((1, 3, 1, 1))
value = jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
most = 2**31 - 1
out = jax.nn.dot_product_attention(query, key, value, local_window_size=(most, most))
print("no key is outside of the window, so each row is 2; got", *out.ravel())
assert jnp.allclose(out, 2)
""",
    "a local window of the largest int32 raises": TOKAMAX
    + """
query, key, value = (jax.random.normal(jax.random.key(k), (1, 5, 2, 64)) for k in range(3))
most = 2**31 - 1
tokamax.dot_product_attention(query, key, value, local_window_size=(most, most), implementation="xla")
""",
    "is_causal with a scale of 0 or less gives NaN": """
import torch
query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=-0.3)
print("row 0 may see key 0 alone, so it is", value[0, 0, 0], "got", out[0, 0, 0])
assert torch.allclose(out[0, 0, 0], value[0, 0, 0])
""",
    "the lse that is returned has gradient 0": """
import jax
query, key, value = (jax.random.normal(jax.random.key(k), (1, 5, 2, 4)) for k in range(3))
def lse(query):
    return jax.nn.dot_product_attention(query, key, value, return_residual=True)[1].sum()
up, down = lse(query + 1e-2), lse(query - 1e-2)
got = jax.grad(lse)(query).sum()
print("slope by differences", (up - down) / 2e-2, "by jax.grad", got)
assert abs(got - (up - down) / 2e-2) < 1e-2
""",
    "a bias of finfo.min lets rows see masked keys": FINFO.format(
        "out = jax.nn.dot_product_attention(ones, ones, values, bias=bias, is_causal=True)"
    ),
    "a bias of finfo.min lets rows see masked keys (linen)": FINFO.format(
        "from flax import linen\n"
        "mask = jnp.tril(jnp.ones((3, 3), bool))[None, None]\n"
        "out = linen.dot_product_attention(ones, ones, values, bias=bias, mask=mask)"
    ),
    "a value of ones in the program gives garbage: XLA's CPU compiler": """
import jax, jax.numpy as jnp
from flax import linen
query, key = (jax.random.normal(jax.random.key(k), (2, 12, 197, 64)) for k in range(2))
@jax.jit
def attend(query, key):
    value = jnp.ones((2, 12, 197, 64)).swapaxes(1, 2)
    return linen.dot_product_attention(query.swapaxes(1, 2), key.swapaxes(1, 2), value).swapaxes(1, 2)
out = attend(query, key)
print("weights sum to 1, so the average of ones is 1; got", float(out.min()), "to", float(out.max()))
assert abs(out - 1).max() < 1e-3
""",
    "a bias of finfo.min and masked scores are the same number": FINFO.format(
        "from memory_efficient_attention import efficient_dot_product_attention_jax as attend\n"
        "bias, mask = jnp.broadcast_to(bias, (1, 1, 3, 3)), jnp.tril(jnp.ones((3, 3), bool))[None, None]\n"
        "out = attend(ones, ones, values, bias=bias, mask=mask)"
    ),
    "six queries in chunks of four give eight rows": """
import jax.numpy as jnp
from memory_efficient_attention import efficient_dot_product_attention_jax as attend
ones = jnp.ones((1, 6, 1, 4))
got = attend(ones, ones, ones, query_chunk_size=4)
print("six queries give", got.shape[1], "rows")
assert got.shape == ones.shape
""",
    "empty sequences raise": """
import jax.numpy as jnp
from memory_efficient_attention import efficient_dot_product_attention_jax as attend
empty, keys = jnp.zeros((1, 0, 2, 4)), jnp.ones((1, 5, 2, 4))
print(attend(empty, keys, keys).shape)  # (1, 0, 2, 4); ValueError: Need at least one array to concatenate
""",
    "empty sequences divide by zero": """
import equinox, jax, jax.numpy as jnp
layer = equinox.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
empty, keys = jnp.zeros((0, 8)), jnp.ones((5, 8))
print(layer(empty, keys, keys).shape)  # (0, 8); ZeroDivisionError: integer modulo by zero
""",
    "empty sequences divide by zero (haiku)": """
import haiku, jax, jax.numpy as jnp
def run(query, keys):
    return haiku.MultiHeadAttention(2, 4, w_init=haiku.initializers.Constant(1.0))(query, keys, keys)
layer = haiku.transform(run)
empty, keys = jnp.zeros((1, 0, 8)), jnp.ones((1, 5, 8))
print(layer.init(jax.random.key(0), empty, keys))  # ZeroDivisionError: integer modulo by zero
""",
    "a mask without a bias raises AttributeError": """
import jax.numpy as jnp
from memory_efficient_attention import efficient_dot_product_attention_jax as attend
ones = jnp.ones((1, 5, 2, 4))
print(attend(ones, ones, ones, mask=jnp.ones((1, 2, 5, 5), bool)).shape)  # AttributeError
""",
    "lengths that the chunk does not divide count keys twice": """
import jax.numpy as jnp
from memory_efficient_attention import efficient_dot_product_attention_jax as attend
query, key = jnp.ones((1, 1, 1, 4)), jnp.ones((1, 6, 1, 4))
value = jnp.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]).reshape(1, 6, 1, 1)
got = attend(query, key, value, key_chunk_size=4)
print("a third of the values is 1, the rest 0; their mean is", float(got[0, 0, 0, 0]))
assert abs(got[0, 0, 0, 0] - 1 / 3) < 1e-5
""",
    "lengths that the chunk of 1024 does not divide count keys twice": """
import jax.numpy as jnp
from flash_attention_jax import flash_attention
S = 1536
query, key, mask = jnp.ones((1, 1, 1, 4)), jnp.ones((1, 1, S, 4)), jnp.ones((1, S), bool)
value = (jnp.arange(S) < 512).astype("float32").reshape(1, 1, S, 1) * jnp.ones(4)
got = flash_attention(query, key, value, mask)
print("a third of the values is 1, the rest 0; their mean is", float(got[0, 0, 0, 0]))
assert abs(got[0, 0, 0, 0] - 1 / 3) < 1e-3
""",
    "gradients of bfloat16 and float16 raise": """
import jax, jax.numpy as jnp
from flash_attention_jax import flash_attention
x, mask = jnp.ones((1, 1, 4, 8), "bfloat16"), jnp.ones((1, 4), bool)
print(jax.grad(lambda q: flash_attention(q, x, x, mask).astype("float32").sum())(x))  # TypeError of lax.scan
""",
    "values of another width than the keys raise": """
import jax.numpy as jnp
from flash_attention_jax import flash_attention
query, value, mask = jnp.ones((1, 1, 4, 8)), jnp.ones((1, 1, 4, 6)), jnp.ones((1, 4), bool)
print(flash_attention(query, query, value, mask).shape)  # TypeError: add got incompatible shapes
""",
    "no keys: the largest of none": """
import jax.numpy as jnp
from flash_attention_jax import flash_attention
query, empty, mask = jnp.ones((1, 1, 4, 8)), jnp.ones((1, 1, 0, 8)), jnp.ones((1, 0), bool)
print(flash_attention(query, empty, empty, mask).shape)  # ValueError: zero-size array to reduction operation max
""",
    "a value shorter than the key is accepted": """
import torch
query, key, value = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 7, 4), torch.randn(1, 1, 6, 4)
got = torch.nn.functional.scaled_dot_product_attention(query, key, value)
print("accepted:", tuple(got.shape))
raise AssertionError("key has 7 rows, value 6, and nothing is said")
""",
    "an attn_mask of rank 1 raises IndexError": """
import torch
x = torch.randn(1, 2, 5, 4)
print(torch.nn.functional.scaled_dot_product_attention(x, x, x, torch.zeros(5)).shape)  # IndexError
""",
    "no keys: max of an empty axis": """
import torch
from torch.nn.attention.flex_attention import flex_attention
query, empty = torch.randn(1, 1, 5, 4), torch.zeros(1, 1, 0, 4)
print(flex_attention(query, empty, empty).shape)  # IndexError
""",
    "is_causal with a mask that is broadcast over the queries: rows see key 0 only": """
import numpy as np
from onnx.reference.ops.op_attention import _compute_attention
ones = np.ones((1, 1, 3, 1), "float32")
value = np.arange(3, dtype="float32").reshape(1, 1, 3, 1)
got = _compute_attention(ones, ones, value, attn_mask=np.ones((1, 1, 1, 3), bool), is_causal=1)[0]
print("means of 0; 0, 1; 0, 1, 2 are 0, 0.5, 1; got", got.ravel())
assert np.allclose(got.ravel(), [0, 0.5, 1])
""",
    "sums of bfloat16 run in bfloat16": """
import ml_dtypes, numpy as np
from onnx.reference.ops.op_attention import _compute_attention
query, key = (np.ones((1, 1, size, 8), ml_dtypes.bfloat16) for size in (1, 2305))
value = (np.arange(2305) < 256).astype(ml_dtypes.bfloat16).reshape(1, 1, 2305, 1)
got = float(_compute_attention(query, key, value)[0].ravel()[0])
print("256 of 2305 equal keys have the value 1, the mean is 0.111; got", got)
assert abs(got - 256 / 2305) < 0.01
""",
    "no keys: maximum of an empty axis": """
import numpy as np
from onnx.reference.ops.op_attention import _compute_attention
query, empty = np.ones((1, 1, 3, 4), "float32"), np.ones((1, 1, 0, 4), "float32")
print(_compute_attention(query, empty, empty)[0])  # ValueError: zero-size array
""",
    "a bias of finfo.min lets rows see masked keys (tokamax)": TOKAMAX
    + """
ones, values = jnp.ones((1, 3, 1, 1)), jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
bias = jnp.where(jnp.arange(3) < 2, jnp.finfo("float32").min, 0.0).reshape(1, 1, 1, 3)
out = tokamax.dot_product_attention(ones, ones, values, bias=bias, is_causal=True, implementation="xla")
print("row 0 may see key 0 alone, whose value is 1; got", float(out[0, 0, 0, 0]))
assert abs(out[0, 0, 0, 0] - 1) < 1e-6
""".lstrip(),
    "a value of ones in the program gives garbage: XLA's CPU compiler (tokamax)": TOKAMAX
    + """
query, key = (jax.random.normal(jax.random.key(k), (2, 12, 197, 64)) for k in range(2))
@jax.jit
def attend(query, key):
    value, (query, key) = jnp.ones((2, 12, 197, 64)).swapaxes(1, 2), (x.swapaxes(1, 2) for x in (query, key))
    return tokamax.dot_product_attention(query, key, value, implementation="xla").swapaxes(1, 2)
out = np.asarray(attend(query, key))
print("weights sum to 1, so the average of ones is 1; got", float(out.min()), "to", float(out.max()))
assert np.allclose(out, 1, atol=1e-3)
""".lstrip(),
    "a local window raises where T != S": TOKAMAX
    + """
query, key = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 6, 1, 8))
print(tokamax.dot_product_attention(query, key, key, local_window_size=2, implementation="xla").shape)  # ValueError
""".lstrip(),
    "reverse over reverse raises": TOKAMAX
    + """
x = jax.random.normal(jax.random.key(0), (1, 4, 1, 8))
def loss(query):
    return tokamax.dot_product_attention(query, x, x, implementation="xla").sum()
print(jax.grad(lambda query: jax.grad(loss)(query)[0, 0, 0, 0])(x).shape)  # ValueError: Linearization failed
""".lstrip(),
    "no keys: the largest of none (tokamax)": TOKAMAX
    + """
query, empty = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 0, 1, 8))
print(tokamax.dot_product_attention(query, empty, empty, implementation="xla").shape)  # ValueError: zero-size array
""".lstrip(),
    "no queries: there is no chunk (tokamax)": TOKAMAX
    + """
empty, key = jnp.ones((1, 0, 1, 8)), jnp.ones((1, 4, 1, 8))
print(tokamax.dot_product_attention(empty, key, key, implementation="xla_chunked").shape)  # TypeCheckError
""".lstrip(),
    "no keys: Reshape of an empty array raises (onnxruntime)": """
import numpy as np, onnxruntime
from onnx import TensorProto, helper
arrays = {"Q": np.ones((1, 1, 3, 4), "float32")} | {name: np.ones((1, 1, 0, 4), "float32") for name in "KV"}
node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"])
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in arrays.items()]
output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)
model = helper.make_model(helper.make_graph([node], "attention", inputs, [output]))
print(onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)[0])  # Fail: Reshape
""",
}
SCRIPTS = {name: script.lstrip() for name, script in SCRIPTS.items()}
