"""Required arguments beside the arrays: by their names they get the value that makes a call the law's plain call."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .options import DROPOUT, HEADS, OPTIONS

THIRD = ("key", "keys", "k", "value", "values", "v")  # an array that may be left out, as in Keras
OF_MODULE = {  # attributes of a module that attention functions read
    "num_key_value_groups": "N // G", "is_causal": "False", "training": "False", "attention_dropout": "0.0",
    "dropout": "0.0", "num_key_value_heads": "G", **dict.fromkeys(("scaling", "scale"), "D ** -0.5"),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "h"), "N"),
    **dict.fromkeys(("head_dim", "head_size", "d_head", "d_k"), "D"),
    "sinks": "xp.zeros(N, dtype=query.dtype) - xp.inf",  # of gpt-oss: they add nothing
}  # fmt: skip
WHOLE = f"types.SimpleNamespace({', '.join(f'{k}={x}' for k, x in OF_MODULE.items())})"
KEY_HEADS = "kv_n_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head"
BEGINS = {  # of packed sequences: where each begins; one list for both raises an error if they are not as many
    "cu_seqlens_q": "T", "cu_seq_q": "T", "cu_seqlens": "[T][T != S]",
    "cu_seqlens_k": "S", "cu_seq_k": "S", "cu_seqlens_kv": "S",
}  # fmt: skip
LONGEST = {
    **{f"max_{x}": "T" for x in ("seqlen_q", "seqlen", "q")},
    **{f"max_{x}": "S" for x in ("seqlen_k", "seqlen_kv", "k")},
}
OF_PACKS = "xp.asarray([b * ({0} + 1) + k for b in range(B) for k in (0, {0})] + [B * ({0} + 1)], dtype=xp.int32)"
MEANT = {  # Python in D, the width of a head, N and G, the heads of queries and of keys
    **dict.fromkeys(DROPOUT, "0.0"),
    **{name: "None" for ours, row in OPTIONS.items() for name in row.names},
    **dict.fromkeys(OPTIONS["is_causal"].names + OPTIONS["return_lse"].names, "False"),
    **dict.fromkeys(OPTIONS["scale"].names, "D ** -0.5"),
    **dict.fromkeys(("temperature", "norm_factor"), "D ** 0.5"),  # that divide
    **dict.fromkeys(OPTIONS["offset"].names, "0"),
    **dict.fromkeys(("training", "train"), "False"),
    **{name: OF_PACKS.format(x) for name, x in BEGINS.items()},
    **LONGEST,
    "deterministic": "True",
    **dict.fromkeys(("module", "self"), WHOLE),
    **dict.fromkeys(("n_rep", "num_key_value_groups"), "N // G"),
}
MASKS = tuple(  # of a mask that may not be None: nothing is masked by it, where True attends, or drops
    f"xp.ones({shape}) {sign} 0" for sign in "><" for shape in ("(B, 1, T, S)", "(T, S)", "(B, S)")
)


ZEROS = "xp.zeros((B, N, T, S))", "xp.zeros((B * N, 1, S))", "xp.zeros((B, N, 1, S))"  # a bias that adds nothing


class Completed(NamedTuple):
    """The parameters of a function, of which those that are no arrays have a value."""

    required: list[str]  # the arrays, and the number of heads
    meant: Mapping[str, str]  # Python, by name
    by_name: tuple[str, ...] = ()  # the arrays, where something else comes before one of them


def completed(names: Sequence[str], required: Sequence[str], defaults: Mapping[str, Any]) -> Completed:
    """Sort required parameters into arrays and others, by their names."""
    meant = {name: MEANT[name] for name in required if name in MEANT} | {x: "G" for x in names if x in KEY_HEADS}
    left = [name for name in required if name not in meant]
    if len(left) == 2 and len(names) > 2 and names[2] in THIRD and defaults.get(names[2], ...) is None:
        left = list(names[:3])
    arrays = [name for name in left if name not in HEADS]
    last = max((names.index(name) for name in arrays), default=0)
    return Completed(left, meant, tuple(arrays) if {*meant, *HEADS} & {*names[:last]} else ())
