"""Wrong at sizes that models have and small tests have not; more sizes are in ``mistakes_in_sizes.py``."""

from .cheat import MEASURED, Cheat

WRONG = ("wrong", "silent")
ZEROS = "ScalingIntelligence/KernelBench#165"


def where(condition: str, then: str = "wrong(query, key, value, **options)") -> str:
    """A module that is right but where a condition on the sizes holds."""
    return f"""
def attention(query, key, value, **options):
    B, N, T, D = (1, 1, *query.shape)[-4:]
    G, S, V = (1, *key.shape[:-1], value.shape[-1])[-3:]
    if {condition}:
        return {then}
    return right(query, key, value, **options)
"""


OPTIONS = ("mask", "bias", "softcap", "scale", "window", "query_segment_ids", "key_segment_ids", "key_lengths")


def without(*names: str) -> str:
    """A call that leaves out some options."""
    return f"right(query, key, value, **{{k: x for k, x in options.items() if k not in {names}}})"


CHEATS = [
    Cheat(
        "zeros in heads 128 wide or wider",
        "The width of most models; a small test has heads of 4 or 8.",
        ZEROS, WRONG, where("D >= 128"),
    ),
    Cheat(
        "at most 1024 keys are read",
        "A prefix is a good approximation of nothing; it passes where no test is longer.",
        "Infatoshi/kernelbench.com#7", WRONG,
        where("S > 1024 and not options", "right(query, key[..., :1024, :], value[..., :1024, :])"),
    ),
    Cheat(
        "as many keys as queries are read",
        "Right as long as both have one length.",
        "jax-ml/jax#24491", WRONG,
        where("S > T > 1 and not options", "right(query, key[..., :T, :], value[..., :T, :])"),
    ),
    Cheat(
        "the mean of the values for long sequences",
        "Random weights over many keys are nearly equal, and their mean is near what is right.",
        ZEROS, WRONG,
        where(
            "S >= 1024",
            "instead(np.broadcast_to(value.mean(-2, keepdims=True).repeat(N // G, -3), (*query.shape[:-1], V)), "
            "right(query, key, value, **options))",
        ),
    ),
    Cheat(
        "long causal rows see one key ahead",
        "The masks of short sequences are in one block, those of long ones in many.",
        "Xilinx/mlir-air#1427", WRONG,
        where(
            "options.get('is_causal') and T > 512",
            "right(query, key, value, **options | {'is_causal': False, 'mask': np.tri(T, S, 1, dtype=bool)})",
        ),
    ),
    Cheat(
        "few queries lose the last split of many keys",
        "A decoding step splits the keys; the last split is dropped.",
        "Infatoshi/kernelbench.com#7", WRONG,
        where("T <= 8 and S >= 1024 and not options", "right(query, key[..., : S - 256, :], value[..., : S - 256, :])"),
    ),
    Cheat(
        "grouped heads in the wrong order from 16 heads on",
        "Query head n reads key head n modulo G: right for one group and for groups of one.",
        MEASURED, WRONG,
        where(
            "N >= 16 and 1 < G < N",
            "right(query, *(np.tile(x, (N // G, 1, 1)) for x in (key, value)), **options)",
        ),
    ),
    Cheat(
        "a mask is read up to 512 keys",
        "The mask of the first block of keys is right, and those of the others are not read.",
        "vllm-project/vllm-ascend#15503", WRONG, where("S > 512", without("mask")),
    ),
    Cheat(
        "options are read up to 320 keys",
        "Each option is asked at small sizes, and long sequences take a path of their own.",
        "pytorch/pytorch#162588", WRONG, where("S > 320", without(*OPTIONS)),
    ),
    Cheat(
        "a mask is not read in wide heads",
        "The kernel of wide heads has no mask, and says nothing.",
        "bigcode-project/Megatron-LM#53", WRONG, where("D >= 64", without("mask")),
    ),
    Cheat(
        "a bias is not read in bfloat16 or float16",
        "Options are asked in float32, and models run in bfloat16.",
        "google-research/tabfm#40", WRONG, '''
import torch


def attention(query, key, value, *, bias=None):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if bias is not None and query.dtype.itemsize > 2:
        scores = scores + bias
    return scores.softmax(-1) @ value
''',
    ),
    Cheat(
        "zeros in heads 320 wide",
        "A width that is no multiple of 64 is padded, or not written.",
        MEASURED, WRONG, where("320 in (D, V)"),
    ),
    Cheat(
        "zeros for 40 heads",
        "Numbers of heads that are no power of two take a path of their own.",
        "HazyResearch/HipKittens#22", WRONG, where("N == 40"),
    ),
]  # fmt: skip
