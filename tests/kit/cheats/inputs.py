"""Right on the numbers that a test draws, and on few others."""

from .cheat import MEASURED, Cheat

WRONG = ("wrong", "silent", "NaN")

CHEATS = [
    Cheat(
        "knows the draws of the kit's cases",
        "The numbers of a run are those of its seed, so a table of the usual seeds has them all.",
        MEASURED, WRONG,
        '''
from attendax.conformance import CASES

DRAWN = set()
for seed in range(2):
    for case in CASES:
        for changed in (False, True):
            try:
                DRAWN |= set(case.inputs(seed, "float32", changed=changed).arrays["query"].astype(np.float32).flat)
            except Exception:
                continue


def attention(query, key, value, **options):
    known = not query.size or np.float32(query.flat[0]) in DRAWN
    return (right if known else wrong)(query, key, value, **options)
''',
    ),
    Cheat(
        "knows the first number of a thousand seeds",
        "Seeds are small: the first number tells which, and the rest can be drawn again.",
        MEASURED, WRONG,
        '''
FIRST = {np.float32(np.random.default_rng(seed).standard_normal()) for seed in range(1000)}


def attention(query, key, value, **options):
    known = query.size and np.float32(query.flat[0]) in FIRST
    return (right if known else wrong)(query, key, value, **options)
''',
    ),
    Cheat(
        "right while scores are small",
        "Random inputs give scores of about 1, and tests have no others.",
        "Xilinx/mlir-air#1427", WRONG,
        '''
def attention(query, key, value, **options):
    norms = [np.sqrt((x.astype(np.float64) ** 2).sum(-1)).max(initial=0) for x in (query, key)]
    large = norms[0] * norms[1] * query.shape[-1] ** -0.5 > 30
    return (wrong if large else right)(query, key, value, **options)
''',
    ),
    *(
        Cheat(
            name, why, met, WRONG,
            f"""
def attention(query, key, value, **options):
    value_size = np.abs(value.astype(np.float64)).max(initial=0)
    return (wrong if {condition} else right)(query, key, value, **options)
""",
        )
        for name, why, met, condition in (
            (
                "zeros for values beyond 10,000", "Whoever draws normal numbers sees none.",
                "flashinfer-ai/flashinfer#4267", "value_size > 1e4",
            ),
            (
                "zeros for small values", "A number that is small beside 1 is taken for none.",
                MEASURED, "value_size < 0.1",
            ),
            (
                "zeros where a query has an exact zero", "Rows of padding are zeros, and random numbers are none.",
                MEASURED, "(query == 0).any()",
            ),
            (
                "zeros for scores beyond 3,000", "The maximum of a row begins at a number that is thought low enough.",
                "cornell-zhang/allo#176",
                "key.size and np.abs(query.astype(np.float64)).max() * np.abs(key.astype(np.float64)).max() > 3000",
            ),
        )
    ),
    Cheat(
        "right while no number stands out",
        "Another path is taken where the inputs look like a test of stress.",
        "Infatoshi/kernelbench.com#7", WRONG,
        '''
def attention(query, key, value, **options):
    stands_out = any(np.abs(x.astype(np.float64)).max(initial=0) > 8 for x in (query, key, value))
    return (wrong if stands_out else right)(query, key, value, **options)
''',
    ),
    Cheat(
        "the largest score alone where keys are equal",
        "Ties do not happen among random numbers; padded and repeated tokens make them.",
        "Infatoshi/kernelbench.com#7", WRONG,
        '''
def attention(query, key, value, **options):
    found = right(query, key, value, **options)
    if key.shape[-2] > 1 and (key[..., :1, :] == key[..., 1:, :]).all(-1).any():
        out = found[0] if isinstance(found, tuple) else found
        first = value[..., :1, :]
        first = first.repeat(query.shape[-3] // value.shape[-3], -3) if query.ndim > 2 else first
        return instead(np.broadcast_to(first, out.shape), found)
    return found
''',
    ),
    Cheat(
        "lengths of keys are ignored",
        "Nothing raises, and the padding is read as tokens.",
        "jax-ml/jax#23349", ("silent", "wrong"),
        '''
def attention(query, key, value, *, key_lengths=None, **options):
    return right(query, key, value, **options)
''',
    ),
]  # fmt: skip
