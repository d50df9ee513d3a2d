"""Models of NumPy arrays."""

import numpy as np

HEADER = "import numpy as np"
WAYS: dict[str, tuple[str | None, str | None]] = {}


def results(found):
    """The results of each position, of what a call gives: the first of several."""
    found = found[0] if isinstance(found, (tuple, list)) else found
    return found.reshape(*found.shape[:2], -1)


def forward(apply, inputs, options):
    """Results (B, T, C)."""
    return results(apply(inputs, **options))


eager = forward


def steps(cache, inputs, options, chunks, room, order):
    """Results (B, T, C), so many tokens at a time."""
    init, step, *reorder = cache
    state, found, start = init(len(inputs), room), [], 0
    for count in chunks:
        given = {name: x[:, start : start + count] for name, x in options.items()}
        one, state = step(inputs[:, start : start + count], state, **given)
        found.append(results(one))
        if order and not start:
            state = reorder[0](state, np.array(order))
        start += count
    return np.concatenate(found, axis=1)


def to_numpy(x):
    """A copy: the model may write its next result to the same memory."""
    return np.array(x)
