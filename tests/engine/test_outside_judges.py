"""Judges from outside, which share no code with us: torch and jax.nn, each forward and each gradient derived by hand.

Without torch the tests by torch are skipped.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, scores, spec
from attendax.params import EncoderBlockParams, MultiHeadParams

pytestmark = pytest.mark.smoke

EXACT = 1e-12  # float64 against float64, relative to the largest entry
JAX_NN = 2e-7  # jax.nn computes the softmax in float32 even of float64 input: 6e-8 is the best it gives

B, N, G, T, S, D, V, M, F, A = 2, 6, 3, 5, 7, 11, 13, 12, 17, 19


def assert_close(got, wanted, tolerance=EXACT):
    """Same shape, and no entry off by more than the tolerance, measured by the largest one."""
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype == np.float64
    largest = np.abs(wanted).max()
    assert largest > 1e-3, "a judge that says 0 judges nothing"
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * largest)


def assert_all_close(got, wanted, tolerance=EXACT):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other, tolerance)


def judged(torch, function, grad_output, *arrays):
    """Results of torch: the value of ``function`` and, by its autograd, the gradients of the arrays."""
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    output = function(*leaves)
    gradients = torch.autograd.grad(output, leaves, torch.tensor(grad_output))
    return output.detach().numpy(), [gradient.numpy() for gradient in gradients]


def assert_judged(torch, theirs, forward, backward, grad_output, *arrays, tolerance=EXACT):
    """Our value and gradients by hand are torch's."""
    output, gradients = judged(torch, theirs, grad_output, *arrays)
    assert_close(forward(*arrays), output, tolerance)
    assert_all_close(backward(grad_output, *arrays), gradients, tolerance)


def allowed_pairs(rng, *shape):
    """A random mask in which every query may look at some key."""
    mask = rng.random(shape) < 0.6
    mask[..., 2] = True
    return mask


# --- Scaled dot-product attention ------------------------------------------------------------------------------------


def judged_attention(torch, rng, mask=None, bias=None):
    """The output of torch's function, which is ours, as are its gradients."""
    shapes = (B, N, T, D), (B, N, S, D), (B, N, S, V), (B, N, T, V)
    *arrays, grad = (rng.standard_normal(shape) for shape in shapes)
    arrays += [] if bias is None else [bias]
    attend = torch.nn.functional.scaled_dot_product_attention
    if mask is not None:
        attend = partial(attend, attn_mask=torch.tensor(mask))
    output, gradients = judged(torch, attend, grad, *arrays)
    given = arrays[:3]
    assert_close(spec.scaled_dot_product_attention(*given, mask, bias=bias)[0], output)
    assert_all_close(spec.scaled_dot_product_attention_backward(grad, *given, mask, bias=bias), gradients)
    return output


@pytest.mark.sample(2)
@pytest.mark.parametrize("mask_shape", [None, (T, S), (B, 1, T, S), (B, N, T, S)])
def test_scaled_dot_product_attention_in_torch(torch, rng, mask_shape):
    judged_attention(torch, rng, None if mask_shape is None else allowed_pairs(rng, *mask_shape))


@pytest.mark.law("L5", "spec", "ops")
def test_a_query_without_any_key_in_torch(torch, rng):
    """torch's function agrees with L5, value and gradient (its MultiheadAttention does not: NaN)."""
    mask = allowed_pairs(rng, B, 1, T, S)
    mask[1, 0, 3] = False
    assert not judged_attention(torch, rng, mask)[1, :, 3].any()


@pytest.mark.law("L2", "spec", "ops")
@pytest.mark.parametrize("bias_shape", [(T, S), (N, 1, S), (B, N, T, S)])
def test_scaled_dot_product_attention_with_a_bias_in_torch(torch, rng, bias_shape):
    judged_attention(torch, rng, bias=rng.standard_normal(bias_shape))


@pytest.mark.law("L1", "spec", "ops")
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_in_torch(torch, rng, causal):
    query, key, value = (rng.standard_normal(size) for size in ((B, N, T, D), (B, G, S, D), (B, G, S, V)))
    grad = rng.standard_normal((B, N, T, V))
    options = {"is_causal": causal, "enable_gqa": True, "scale": 0.7}
    attend = partial(torch.nn.functional.scaled_dot_product_attention, **options)
    mine = {"mask": np.tri(T, S, dtype=bool) if causal else None, "scale": 0.7}
    forward, backward = (partial(f, **mine) for f in (spec.attention, spec.attention_backward))
    assert_judged(torch, attend, forward, lambda *given: backward(*given)[:3], grad, query, key, value)


@pytest.mark.law("L3", "spec", "ops")
@pytest.mark.sample(2)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_in_jax_nn(rng, masked, is_causal):
    """Grouped heads, bias, scale; its arrays are (B, T, N, D). Every query sees key 0 at least."""
    query, key, value = (rng.standard_normal(size) for size in ((B, N, T, D), (B, G, S, D), (B, G, S, D)))
    bias, grad = rng.standard_normal((1, N, T, S)), rng.standard_normal((B, N, T, D))
    lengths = np.array([S, 4]) if masked else np.array([S, S])

    def attend(query, key, value, bias):
        heads_inside = (x.swapaxes(1, 2) for x in (query, key, value))
        options = {"scale": 0.3, "is_causal": is_causal, "key_value_seq_lengths": jnp.array(lengths, jnp.int32)}
        return jax.nn.dot_product_attention(*heads_inside, bias, **options).swapaxes(1, 2)

    @jax.jit
    def both(*arrays):
        output, pull_back = jax.vjp(attend, *arrays)
        return output, pull_back(grad)

    output, gradients = both(query, key, value, bias)
    pairs = np.tri(T, S, dtype=bool) if is_causal else np.ones((T, S), bool)
    mine = {"mask": pairs & (np.arange(S) < lengths[:, None, None, None]), "bias": bias, "scale": 0.3}
    assert_close(spec.attention(query, key, value, **mine), output, JAX_NN)
    assert_all_close(spec.attention_backward(grad, query, key, value, **mine)[:4], gradients, 10 * JAX_NN)


@pytest.mark.law("L2", "spec", "ops")
def test_softcap_slopes_and_log_sum_exp_in_torch(torch, rng):
    """No library function has these gradients: the formula of L2 and L9 in torch, differentiated by torch."""
    shapes = (N, T, D), (N, S, D), (N, S, V), (N,), (N, 1, S)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    grad_out, grad_lse = rng.standard_normal((N, T, V)), rng.standard_normal((N, T))
    distance = torch.tensor(np.abs(np.arange(S) - np.arange(T)[:, None] - 2))

    def both(query, key, value, slopes, bias):
        s = 2 * torch.tanh(query @ key.mT / D**0.5 / 2) - slopes[:, None, None] * distance + bias
        return torch.cat([torch.softmax(s, -1) @ value, torch.logsumexp(s, -1)[..., None]], -1)

    output, gradients = judged(torch, both, np.concatenate([grad_out, grad_lse[..., None]], -1), *arrays)
    *qkv, slopes, bias = arrays
    score_mod = scores.compose(scores.softcap(2.0), scores.alibi(slopes, offset=2))
    out, lse = spec.attention(*qkv, bias=bias, score_mod=score_mod, return_lse=True)
    assert_close(np.concatenate([out, lse[..., None]], -1), output)
    mine = spec.attention_backward(grad_out, *qkv, bias=bias, score_mod=score_mod, grad_lse=grad_lse)
    (grad_slopes,) = mine.grad_score_mod.arrays[1].arrays
    assert_all_close([*mine[:3], grad_slopes, mine.grad_bias], gradients)


def test_additive_attention_in_torch(torch, rng):
    """torch has no such layer: its linear layers, tanh and softmax, differentiated by torch."""
    shapes = (B, T, 3), (B, S, 2), (B, S, V), (3, A), (2, A), (A,)
    arrays, grad = [rng.standard_normal(shape) for shape in shapes], rng.standard_normal((B, T, V))
    mask = allowed_pairs(rng, B, T, S)

    def attend(Q, K, values, W_q, W_k, v):
        linear = torch.nn.functional.linear
        hidden = torch.tanh(linear(Q, W_q.T).unsqueeze(2) + linear(K, W_k.T).unsqueeze(1))
        s = linear(hidden, v[None]).squeeze(-1).masked_fill(torch.tensor(~mask), -torch.inf)
        return torch.softmax(s, -1) @ values

    forward, backward = (partial(f, mask=mask) for f in (spec.additive_attention, spec.additive_attention_backward))
    assert_judged(torch, attend, lambda *arrays: forward(*arrays)[0], backward, grad, *arrays)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_in_torch_and_jax_nn(torch, rng, axis):
    x, grad = 30 * rng.standard_normal((B, T, S)), rng.standard_normal((B, T, S))
    forward, backward = lambda x: spec.softmax(x, axis), lambda grad, x: [spec.softmax_backward(grad, x, axis)]
    assert_judged(torch, partial(torch.softmax, dim=axis), forward, backward, grad, x)
    assert_close(spec.softmax(x, axis), jax.nn.softmax(x, axis))


# --- Multi-head attention and the encoder block ----------------------------------------------------------------------


def redraw(torch, module, rng):
    """Every parameter from a normal distribution: torch starts biases at 0 and scales at 1, which hides mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(0.4 * rng.standard_normal(tuple(parameter.shape))))
    return module


def multi_head_params(named):
    """torch keeps weights as (out, in), and those of Q, K and V in one matrix."""
    if "in_proj_weight" in named:
        W_Q, W_K, W_V = named["in_proj_weight"].reshape(3, M, M).swapaxes(1, 2)
    else:  # but where their widths differ
        W_Q, W_K, W_V = (named[f"{which}_proj_weight"].T for which in "qkv")
    if "in_proj_bias" not in named:
        return MultiHeadParams(W_Q, W_K, W_V, named["out_proj.weight"].T)
    b_Q, b_K, b_V = named["in_proj_bias"].reshape(3, M)
    return MultiHeadParams(W_Q, W_K, W_V, named["out_proj.weight"].T, b_Q, b_K, b_V, named["out_proj.bias"])


def block_params(named):
    attention = {name.removeprefix("self_attn."): x for name, x in named.items() if name.startswith("self_attn.")}
    network = named["linear1.weight"].T, named["linear1.bias"], named["linear2.weight"].T, named["linear2.bias"]
    norms = (named[f"norm{which}.{kind}"] for which in (1, 2) for kind in ("weight", "bias"))
    return EncoderBlockParams(multi_head_params(attention), *network, *norms)


def judged_module(torch, module, run, grad_output, *arrays):
    """Value, gradients of the arrays, parameters and their gradients, the last two by torch's names."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    output = run(module, *leaves)
    gradients = torch.autograd.grad(output, [*leaves, *parameters], torch.tensor(grad_output))
    gradients = [gradient.numpy() for gradient in gradients]
    named = dict(zip(names, (parameter.detach().numpy() for parameter in parameters), strict=True))
    named_gradients = dict(zip(names, gradients[len(arrays) :], strict=True))
    return output.detach().numpy(), gradients[: len(arrays)], named, named_gradients


@pytest.mark.slow
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_in_torch(torch, rng, bias, widths):
    """Biases, a mask of pairs, a mask of padding: True means "drop" there, so both are inverted; other widths."""
    module = torch.nn.MultiheadAttention(M, N, bias=bias, batch_first=True, dtype=torch.float64, **widths)
    redraw(torch, module, rng)
    sizes = (T, M), (S, widths.get("kdim", M)), (S, widths.get("vdim", M)), (T, M)
    Q, K, V_, grad = (rng.standard_normal((B, *size)) for size in sizes)
    pairs, real = allowed_pairs(rng, T, S), np.arange(S) < np.array([[S], [4]])
    drop = {"attn_mask": torch.tensor(~pairs), "key_padding_mask": torch.tensor(~real)}
    seen = []

    def run(module, *qkv):
        output, weights = module(*qkv, **drop, average_attn_weights=False)
        seen.append(weights.detach().numpy())
        return output

    output, gradients, named, named_gradients = judged_module(torch, module, run, grad, Q, K, V_)
    params, wanted = multi_head_params(named), multi_head_params(named_gradients)
    layer = spec.MultiHeadAttention(M, N, bias=bias, **widths)
    layer.set_params(params)
    assert_close(layer.forward(Q, K, V_, pairs & real[:, None, None]), output)
    assert_close(layer.attention_weights, *seen)
    *grads, grad_params = layer.backward(grad)
    assert_all_close(grads, gradients)
    assert list(grad_params) == [name for name, x in params._asdict().items() if x is not None]
    for name, got in grad_params.items():
        if name == "b_K":  # a shift that softmax does not see: the gradient is 0 but for rounding
            assert np.abs(got).max() < 1e-13 > np.abs(wanted.b_K).max()
        else:
            assert_close(got, getattr(wanted, name))
    drawn = ops.MultiHeadAttention(M, N, bias=bias, **widths)
    assert [x.shape for x in jax.tree.leaves(drawn.init(jax.random.key(0)))] == [
        x.shape for x in jax.tree.leaves(params)
    ]
    assert_close(drawn.forward(Q, K, V_, params, pairs & real[:, None, None]), output)
    *grads, of_params = drawn.backward(grad, Q, K, V_, params, pairs & real[:, None, None])
    assert_all_close(grads, gradients)
    assert_all_close(of_params[:4], wanted[:4])


ACTIVATIONS = ["relu", "gelu", "gelu_tanh"]


def torch_activation(torch, activation):
    functional = torch.nn.functional
    return {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    }[activation]


def torch_layer(torch, rng, norm, activation):
    options = {"dropout": 0.0, "layer_norm_eps": 1e-3, "batch_first": True, "norm_first": norm == "pre"}
    options |= {"activation": torch_activation(torch, activation), "dtype": torch.float64}
    return redraw(torch, torch.nn.TransformerEncoderLayer(M, N, F, **options), rng)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_block_in_torch(torch, rng, norm, activation):
    module = torch_layer(torch, rng, norm, activation)
    x, grad = rng.standard_normal((B, T, M)), rng.standard_normal((B, T, M))
    mask = allowed_pairs(rng, T, T)
    run = partial(lambda drop, module, x: module(x, src_mask=drop), torch.tensor(~mask))
    output, gradients, named, named_gradients = judged_module(torch, module, run, grad, x)
    params, wanted = block_params(named), block_params(named_gradients)

    block = spec.TransformerEncoderBlock(M, N, F, norm=norm, activation=activation, bias=True, eps=1e-3)
    block.set_params(params)
    assert_close(block.forward(x, mask), output)
    grad_x, grad_params = block.backward(grad)
    assert_close(grad_x, *gradients)
    assert_all_close(jax.tree.leaves(EncoderBlockParams(**grad_params).attention._replace(b_K=None)),
                     jax.tree.leaves(wanted.attention._replace(b_K=None)))  # fmt: skip
    assert_all_close(list(grad_params.values())[1:], wanted[1:])


def test_stack_in_torch(torch, rng):
    layers = [torch_layer(torch, rng, "post", "gelu") for _ in range(3)]
    module = torch.nn.TransformerEncoder(layers[0], 3, enable_nested_tensor=False)
    for own, layer in zip(module.layers, layers, strict=True):
        own.load_state_dict(layer.state_dict())
    x, grad = rng.standard_normal((B, T, M)), rng.standard_normal((B, T, M))
    output, gradients, named, _ = judged_module(torch, module, lambda module, x: module(x), grad, x)
    blocks = []
    for number in range(3):
        blocks.append(spec.TransformerEncoderBlock(M, N, F, norm="post", activation="gelu", bias=True, eps=1e-3))
        prefix = f"layers.{number}."
        blocks[-1].set_params(
            block_params({name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)})
        )
    assert_close(spec.stack_encoder_blocks(x, blocks), output)
    assert_close(spec.stack_encoder_blocks_backward(grad, x, blocks)[0], *gradients)


# --- What acts on every token alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "eps"), [(0.0, 1e-6), (0.0, 0.5), (1e4, 1e-5)])
def test_layer_norm_in_torch(torch, rng, mean, eps):
    x, grad = mean + rng.standard_normal((B, T, M)), rng.standard_normal((B, T, M))
    gamma, beta = rng.standard_normal((2, M))

    def norm(x, *rest):
        return torch.nn.functional.layer_norm(x, (M,), *rest, eps)

    output, gradients = judged(torch, norm, grad, x, gamma, beta)
    tolerance = EXACT * max(1, mean)  # an input of 1e4 is itself known to 1e-12 of its spread
    assert_close(spec.layer_norm(x, gamma, beta, eps), output, tolerance)
    assert_all_close(spec.layer_norm_backward(grad, x, gamma, eps), gradients, tolerance)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_in_torch(torch, rng, activation):
    shapes = (B, T, M), (M, F), (F,), (F, M), (M,)
    arrays, grad = [rng.standard_normal(shape) for shape in shapes], rng.standard_normal((B, T, M))
    act, linear = torch_activation(torch, activation), torch.nn.functional.linear

    def network(x, W1, b1, W2, b2):
        return linear(act(linear(x, W1.T, b1)), W2.T, b2)

    forward, backward = (partial(f, activation=activation) for f in (spec.feed_forward, spec.feed_forward_backward))
    assert_judged(torch, network, forward, backward, grad, *arrays)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_in_torch_and_jax_nn(torch, activation):
    """A network of width 1 with weights 1 and biases 0 is the activation itself; far out, near 0, on both sides."""
    x = np.concatenate([np.linspace(-9.0, 9.0, 180), [1e-8, -1e-8, 40.0, -40.0]])  # not 0: relu has no slope there
    output, (slope,) = judged(torch, torch_activation(torch, activation), np.ones_like(x), x)
    tokens, network = x[None, :, None], (np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    assert_close(spec.feed_forward(tokens, *network, activation=activation)[0, :, 0], output)
    gradients = spec.feed_forward_backward(np.ones_like(tokens), tokens, *network, activation=activation)
    assert_close(gradients[0][0, :, 0], slope)
    theirs = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False), "gelu_tanh": jax.nn.gelu}
    assert_close(output, theirs[activation](x))
