"""The last line of an error is code that works: it is taken from the message, run, and its result is the right one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import encoders, masks, scores, spec
from attendax.compat.flax import attention_fn
from attendax.compat.jax_nn import dot_product_attention

B, N, G, T, S, D = 2, 4, 2, 5, 7, 3
RNG = np.random.default_rng(0)
CALL = {
    "query": RNG.normal(size=(B, N, T, D)).astype(np.float32),
    "key": RNG.normal(size=(B, G, S, D)).astype(np.float32),
    "value": RNG.normal(size=(B, G, S, D)).astype(np.float32),
}
FLAGS = np.arange(S) < np.array([[3], [6]])  # (B, S), as tokenizers give it, the real tokens first
BY_KEY = FLAGS[:, None, None, :]
BY_TEXT = RNG.random((B, T, S)) < 0.7
BY_HEAD = RNG.random((N, T, S)) < 0.7
BIAS = {name: RNG.normal(size=size).astype(np.float32) for name, size in (("key", (B, S)), ("text", (B, T, S)))}

MASKS = {
    "of booleans": (FLAGS, ["mask[:, None, None, :]", "masks.padding(mask.sum(-1))"], BY_KEY),
    "of integers": (FLAGS + 0, ["mask.astype(bool)[:, None, None, :]", "masks.padding(mask.sum(-1))"], BY_KEY),
    "a list": (FLAGS.tolist(),
        ["np.asarray(mask, 'bool')[:, None, None, :]", "masks.padding(np.asarray(mask).sum(-1))"], BY_KEY),
    "a list of 0 and 1": ((FLAGS + 0).tolist(), ["masks.padding(np.asarray(mask).sum(-1))"], BY_KEY),
    "lengths in a list": ([3, 6], ["masks.padding(np.asarray(mask))"], BY_KEY),
    "lengths": (np.array([3, 6]), ["masks.padding(mask)"], BY_KEY),
    "of one text": (FLAGS[0], ["mask[None, :]"], FLAGS[0][None]),
    "a square in a list": (BY_TEXT[0].tolist(), ["np.asarray(mask, 'bool')"], BY_TEXT[0]),
    "by text": (BY_TEXT, ["mask[:, None]"], BY_TEXT[:, None]),
    "by text in a list": (BY_TEXT.tolist(), ["np.asarray(mask, 'bool')[:, None]"], BY_TEXT[:, None]),
    "by head": (BY_HEAD, ["mask[None]"], BY_HEAD[None]),
    "by head, of integers": (BY_HEAD + 0, ["mask.astype(bool)[None]"], BY_HEAD[None]),
    "its name": ("causal", ["masks.causal()"], masks.causal()),
    "a list of masks": ([masks.causal(), masks.padding(FLAGS.sum(-1))], ["mask[0] & mask[1]"],
        masks.causal() & masks.padding(FLAGS.sum(-1))),
}  # fmt: skip


def run(code, name, value):
    return eval(code, {"np": np, "jnp": jnp, "masks": masks, name: value})


def message_of(call, error=(TypeError, ValueError)):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value).splitlines()


def check(attend, name, wrong, codes, right):
    last = message_of(lambda: attend(**{name: wrong}))[-1]
    for code in codes:
        assert code in last
        found = attend(**{name: run(code, name, wrong)})
        np.testing.assert_allclose(found, attend(**{name: right}), rtol=1e-6, atol=1e-6)


def swapped(function, **given):
    """A function that takes tokens before heads."""
    arrays = {name: given.pop(name).swapaxes(1, 2) for name in CALL}
    return function(**arrays, **given).swapaxes(1, 2)


ATTEND = {
    "attendax": functools.partial(attendax.attention, **CALL),
    "spec": functools.partial(spec.attention, **CALL),
    "jax_nn": functools.partial(swapped, dot_product_attention, **CALL),
    "jax_nn, causal": functools.partial(swapped, dot_product_attention, is_causal=True, **CALL),
}


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
@pytest.mark.parametrize(
    ("attend", "name"), [(a, n) for a in ATTEND for n in MASKS if a in ("attendax", "spec") or n != "lengths"]
)
def test_masks(attend, name):
    check(ATTEND[attend], "mask", *MASKS[name])


def test_masks_in_flax():
    attend = functools.partial(swapped, attention_fn, is_causal=True, **CALL)
    for name in ("of booleans", "by text", "by head"):
        check(attend, "mask", *MASKS[name])


def test_masks_of_torch(torch):
    array = "mask.detach().cpu().numpy()"
    padding = f"masks.padding({array}.sum(-1))"
    for flags in (torch.tensor(FLAGS), torch.tensor(FLAGS).long()):
        check(ATTEND["attendax"], "mask", flags, [f"{array}.astype(bool)[:, None, None, :]", padding], BY_KEY)
    check(ATTEND["spec"], "mask", torch.tensor(BY_TEXT[0]), [f"{array}.astype(bool)"], BY_TEXT[0])
    lengths = torch.tensor([3, 6])
    assert "masks" not in message_of(lambda: masks.segments(lengths, lengths))[-1]
    for make in (masks.padding, lambda key_lengths: masks.causal() & masks.padding(key_lengths)):
        last = message_of(lambda make=make: make(lengths), TypeError)[-1]
        assert last == "Convert the torch tensor to an array: key_lengths.detach().cpu().numpy()."
    assert message_of(lambda: masks.dense(torch.tensor(FLAGS)), TypeError)[-1].endswith(
        " array.detach().cpu().numpy()."
    )
    assert message_of(lambda: scores.alibi(torch.ones(N)), TypeError)[-1].endswith(" slopes.detach().cpu().numpy().")


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
@pytest.mark.parametrize("attend", ["attendax", "spec"])
def test_biases(attend):
    """By head is NumPy's own reading; jax.nn's signature wants the axis of the batch."""
    attend = ATTEND[attend]
    check(attend, "bias", BIAS["key"], ["bias[:, None, None, :]"], BIAS["key"][:, None, None])
    check(attend, "bias", BIAS["text"], ["bias[:, None]"], BIAS["text"][:, None])
    check(attend, "bias", BIAS["text"][0].tolist(), ["np.asarray(bias, 'float32')"], BIAS["text"][0])


@pytest.mark.smoke
def test_biases_in_jax_nn():
    by_head = RNG.normal(size=(N, T, S)).astype(np.float32)
    check(ATTEND["jax_nn"], "bias", by_head, ["bias[None]"], by_head[None])
    check(ATTEND["jax_nn"], "bias", BIAS["text"], ["bias[:, None]"], BIAS["text"][:, None])


@pytest.mark.smoke
def test_where_batch_and_heads_are_equal_both_readings_are_named():
    x = np.ones((3, 3, 5, 2), np.float32)
    last = message_of(lambda: attendax.attention(x, x, x, mask=np.ones((3, 5, 5), bool)))[-1]
    assert last == ("To add the head axis, write mask[:, None]. For one mask per head, (N, T, S), write mask[None].")
    last = message_of(lambda: masks.dense(np.ones((3, 5), bool)).to_dense(4, 5))[-1]
    assert last.startswith(
        "For one entry per key, (B, S), write array[:, None, None, :], or masks.padding(array.sum(-1))"
    )
    last = message_of(lambda: attendax.attention(x, x, x, mask=masks.dense(np.ones((3, 5, 5), bool))))[-1]
    assert "array[:, None]" in last
    assert last.endswith("Pass the result to masks.dense.")


def test_the_seeds_have_no_head_axis():
    Q, K, V = (x[:, 0] for x in CALL.values())
    attend = functools.partial(spec.scaled_dot_product_attention, Q, K, V)
    last = message_of(lambda: attend(mask=FLAGS))[-1]
    assert last == "For one entry per key, (B, S), write mask[:, None, :]."
    attend(mask=FLAGS[:, None, :])


@pytest.mark.parametrize(
    ("swapped_names", "code"),
    [
        (("key", "value"), "key.swapaxes(1, 2), value.swapaxes(1, 2)"),
        (("query", "key", "value"), "query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)"),
    ],
)
def test_heads_and_tokens_the_other_way_round(swapped_names, code):
    arrays = {name: x.swapaxes(1, 2) if name in swapped_names else x for name, x in CALL.items()}
    for attend in (attendax.attention, spec.attention):
        message = message_of(lambda f=attend: f(**arrays))
        assert message[-2] == f"Heads come before tokens, (..., N, T, D). From (..., T, N, D): {code}."
        assert message[-1] == "attendax.compat.jax_nn.dot_product_attention takes (B, T, N, D) directly."
        assert [line.split()[0] for line in message[1:4]] == ["query", "key", "value"]
        assert str(arrays["key"].shape) in message[2]
    others = {name: x.swapaxes(1, 2) for name, x in arrays.items()}  # that call's tokens come first
    message = message_of(lambda: dot_product_attention(**others))
    assert message[-1] == f"Tokens come before heads, (..., T, N, D). From (..., N, T, D): {code}."


@pytest.mark.parametrize(("T", "S"), [(5, 7), (6, 6), (1, 1), (1, 8), (64, 64), (12, 4), (3, 3)])
def test_four_heads_over_three_are_no_matter_of_axes(T, S):
    query, key = np.ones((2, 4, T, 8), np.float32), np.ones((2, 3, S, 8), np.float32)
    for message in (
        message_of(lambda: attendax.attention(query, key, key)),
        message_of(lambda: dot_product_attention(*(x.swapaxes(1, 2) for x in (query, key, key)))),
    ):
        assert "query has N=4 heads, which is not a multiple of the G=3 of key." in message[0]
        assert len(message) == 4  # and the table


def check_of_one(name, wrong, code):
    """In place of one array of the call."""
    rest = {other: x for other, x in CALL.items() if other != name}
    for attend in (spec.attention, attendax.attention):
        check(functools.partial(attend, **rest), name, wrong, [code], CALL[name])


def test_arrays_of_another_kind():
    for name, x in CALL.items():
        check_of_one(name, x.tolist(), f"np.asarray({name}, 'float32')")
    traced = message_of(lambda: jax.jit(lambda x: attendax.attention(x, CALL["key"], CALL["value"]))([1.0, 2.0]))
    assert traced[-1] == "Convert the list to an array: jnp.asarray(query, 'float32')."


def test_tensors_of_torch(torch):
    for name, x in CALL.items():
        check_of_one(name, torch.tensor(x, requires_grad=True), f"{name}.detach().cpu().numpy()")
    narrow = torch.ones(5, 3, dtype=torch.bfloat16, requires_grad=True)
    last = message_of(lambda: attendax.attention(narrow, narrow, narrow))[-1]
    assert last == "Convert the torch tensor to an array: jnp.from_dlpack(query.detach())."
    assert run("jnp.from_dlpack(query.detach())", "query", narrow).dtype == jnp.bfloat16


def test_ids_and_masks_of_encode():
    config = encoders.EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=0)
    params = encoders.init_encoder(jax.random.key(0), config)
    ids, flags = np.array([[1, 2, 3]]), np.array([[1, 1, 0]])
    encode = functools.partial(encoders.encode, params=params, config=config)
    assert message_of(lambda: encode(ids.tolist()))[-1] == "Convert the list to an array: np.asarray(x)."
    assert message_of(lambda: encode(ids, mask=flags))[-1] == "If the numbers are 0 and 1, write mask.astype(bool)."
    last = message_of(lambda: encode(ids, mask=flags.tolist()))[-1]
    assert last == "Convert the list to an array: np.asarray(mask, 'bool')."


NEXT = {
    "real tokens for lengths": (lambda: masks.padding(np.ones((2, 3), bool)), TypeError,
        "If the real tokens come first, write key_lengths.sum(-1)."),
    "one side of a window": (lambda: masks.window(3), TypeError,
        "Write window(3, 0) for the last keys, window(3, 3) for both sides, window(3, None) for no bound."),
    "mixed dtypes": (lambda: attendax.attention(**CALL | {"key": CALL["key"].astype(np.float64)}), TypeError,
        "Use one dtype: key.astype(query.dtype)."),
    "a layout": (
        lambda: attendax.attention(**CALL, layout="BTNH"),
        TypeError,
        "Heads come before tokens, (..., N, T, D): x.swapaxes(1, 2). "
        "attendax.compat.jax_nn.dot_product_attention takes (B, T, N, D) directly.",
    ),
    "a name of two modules": (
        lambda: attendax.rotary_encoding,
        AttributeError,
        "module 'attendax' has no attribute 'rotary_encoding'; there is attendax.spec.rotary_encoding and "
        "attendax.ops.rotary_encoding",
    ),
}  # fmt: skip


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
@pytest.mark.parametrize("name", NEXT)
def test_the_next_line(name):
    call, error, said = NEXT[name]
    assert message_of(call, error)[-1] == said
    assert masks.window(left=1, right=None).settings == (0, 1, None)
