"""Each option by each strategy, on meshes of 1, 2, 3, 4, 6 and 8 devices: the specification, to 1e-12.

Each option is tried with each strategy and on each mesh, and each strategy on each mesh; not all three together. Where
there is the native library, forward and gradient of each device's part are native.
"""

import jax
import numpy as np
import pytest
import sequences

from attendax import attention, masks, scores
from attendax.kernels import native
from judges import assert_leaves_close, by_definition
from samples import covering

pytestmark = pytest.mark.usefixtures("compiled_quickly")
NATIVE, IN_TILES = ("attendax_forward", "attendax_backward"), ("causal, zigzag", "function")
T, STRATEGIES, MESHES = 48, ("ring", "all_gather", "ulysses"), (1, 2, 3, 4, 6, 8)
OPTIONS = {
    "full": lambda rng, N: {},
    "causal, contiguous": lambda rng, N: {"mask": masks.causal()},
    "causal, zigzag": lambda rng, N: {"mask": masks.causal()},
    "window": lambda rng, N: {"mask": masks.window(9, 2)},
    "segments": lambda rng, N: {"mask": masks.segments(*(np.sort(rng.integers(0, 3, (2, T))) for _ in range(2)))},
    "padding": lambda rng, N: {"mask": masks.padding(np.array([T - 3, 0]))},
    "prefix": lambda rng, N: {"mask": masks.prefix(np.array([T // 3, 1]))},
    "bias": lambda rng, N: {"bias": rng.normal(size=(1, N, T, T))},
    "dense mask": lambda rng, N: {"mask": masks.dense(rng.random((2, 1, T, T)) < 0.1)},
    "softcap": lambda rng, N: {"score_mod": scores.softcap(0.5)},
    "ALiBi": lambda rng, N: {"score_mod": scores.alibi(np.linspace(0.05, 0.3, N))},
    "relative bias": lambda rng, N: {"score_mod": scores.relative_bias(rng.normal(size=(N, 7)))},
    "sink": lambda rng, N: {"score_mod": scores.sink(np.linspace(-1, 2, N))},
    "function": lambda rng, N: {"mask": masks.from_function(lambda i, j: (i - j) % 3 != 1)},
    "dropout": lambda rng, N: {"dropout_rate": 0.3, "dropout_rng": sequences.RNG},
    "grouped": lambda rng, N: {},
}
TOGETHER = {  # each of the options, with others
    "causal, padding, bias": ("causal, zigzag", "padding", "bias"),
    "window, segments, softcap, grouped": ("window", "segments", "softcap", "grouped"),
    "prefix, dense mask, dropout": ("prefix", "dense mask", "dropout"),
    "ALiBi, full": ("ALiBi", "full"),
}


def given_for(names, rng, devices):
    """Query, key, value and the options of these names together; heads that the devices divide."""
    N = 8 if devices == 8 else 12
    arrays = sequences.arrays_of(rng, T, heads=N, groups=2 if "grouped" in names else N)
    options = {}
    for name in names:
        new = OPTIONS[name](rng, N)
        options |= new if "mask" not in new or "mask" not in options else {"mask": options["mask"] & new["mask"]}
    return arrays, options


@pytest.mark.law("L13", "sharded")
@pytest.mark.law("L10", "sharded")
@pytest.mark.law("L9", "sharded")
@pytest.mark.law("L4", "sharded")
@pytest.mark.law("L3", "sharded")
@pytest.mark.law("L2", "sharded")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("strategy", "option", "devices"), covering(STRATEGIES, (*OPTIONS, *TOGETHER), MESHES))
def test_out_lse_and_every_gradient(strategy, option, devices, rng):
    order = "zigzag" if "zigzag" in option else "in order"
    arrays, options = given_for(TOGETHER.get(option, (option,)), rng, devices)
    dout, dlse = rng.normal(size=(*arrays[0].shape[:-1], sequences.V)), rng.normal(size=arrays[0].shape[:-1])
    given, specs, rest = sequences.placed(options, devices, order)
    attend = sequences.attend_by(devices, strategy, order, specs, rest, T, check_vma="segments" not in option)
    tokens = [sequences.turned(x, devices, order, -2) for x in (*arrays, dout)]
    run = jax.jit(sequences.results_and_gradients(attend))
    leaves = *tokens[:3], given, tokens[3], sequences.turned(dlse, devices, order, -1)
    text = run.lower(*leaves).as_text()
    assert all(name in text for name in NATIVE) == (bool(native.library().isa) and option not in IN_TILES)
    found = sequences.in_order(run(*leaves), devices, order)
    assert_leaves_close(found, by_definition(arrays, dout, dlse, **options), rtol=1e-12, atol=1e-12)


ORDERS = "in order", "contiguous", "zigzag"


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options", "devices", "order"), covering(STRATEGIES, tuple(TOGETHER), MESHES, ORDERS)
)
def test_every_direction(strategy, options, devices, order, rng):
    """jvp, forward over reverse and reverse over reverse are those of one device."""
    arrays, options = given_for(TOGETHER[options], rng, devices)
    leaves = (*arrays, options["bias"]) if "bias" in options else tuple(arrays)
    directions = tuple(rng.normal(size=x.shape) for x in leaves)
    w, u = rng.normal(size=(*arrays[0].shape[:-1], sequences.V)), rng.normal(size=arrays[0].shape[:-1])

    def alone(query, key, value, given):
        return attention(query, key, value, return_lse=True, **options | given)

    pushed, *second = jax.jit(sequences.every_direction(alone))(leaves, directions, {}, w, u)
    given, specs, rest = sequences.placed(options, devices, order)
    across = sequences.attend_by(devices, strategy, order, specs, rest, T)

    def turned(x, *axes):
        return sequences.turned(x, devices, order, *axes)

    of_tokens = (*[(-2,)] * 3, (-1, -2))
    turned_leaves, turned_directions = (
        tuple(turned(x, *axes) for x, axes in zip(each, of_tokens, strict=False)) for each in (leaves, directions)
    )
    run = jax.jit(sequences.every_direction(across))
    found, *found_second = run(turned_leaves, turned_directions, given, turned(w, -2), turned(u, -1))
    for ours, right in zip(found_second, second, strict=True):
        each = sequences.in_order([*found, *ours], devices, order)
        assert_leaves_close(each, (*pushed, *right), rtol=1e-11, atol=1e-11)
