"""The options of attention: by which names functions have them, how they are given, and what is found out with each.

On this side a mask is (B or 1, N or 1, T, S) with True = attend, a scale a factor, and a window or an offset a number.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..adapters.implementation import PACKED
from ..conventions.table import IGNORED, IN_TURN, TABLE
from .weights import ONE_HOT, WEIGHT, WEIGHTS, role_of, unchanging

VARLEN = PACKED  # the tokens of all on one axis; behind those of each is one more sequence, of one token
FLAT = "(B·T)ND"  # batches one after the other, of which the function is told the number
INTO = {  # a layout of arrays, from (B, N, T, D): a line of Python
    "BNTD": "{x}", "BTND": "{x}.swapaxes(1, 2)", "TBND": "xp.moveaxis({x}, 2, 0)", "NBTD": "{x}.swapaxes(0, 1)",
    "TNBD": "{x}.swapaxes(0, 2)",
    "BT(ND)": "{x}.swapaxes(1, 2).reshape(B, {x}.shape[2], -1)", "NTD": "{x}", "TND": "{x}.swapaxes(0, 1)",
    "T(ND)": "{x}.swapaxes(0, 1).reshape({x}.shape[1], -1)", "BTD": "{x}", "TD": "{x}",
    "TB(ND)": "xp.moveaxis({x}, 2, 0).reshape({x}.shape[2], B, -1)",
    "BDNT": "xp.moveaxis({x}, 3, 1)", "B(ND)T": "{x}.swapaxes(2, 3).reshape(B, -1, {x}.shape[2])",
    "BDT": "{x}.swapaxes(1, 2)", "DT": "{x}.swapaxes(0, 1)",
    FLAT: "{x}.swapaxes(1, 2).reshape(-1, {x}.shape[1], {x}.shape[3])",
    VARLEN: "xp.concatenate([y.swapaxes(0, 1) for z in {x} for y in (z, z[:, :1])])",
}  # fmt: skip
OUT_OF = {  # and back
    "BNTD": "{x}", "BTND": "{x}.swapaxes(1, 2)", "TBND": "xp.moveaxis({x}, 0, 2)", "NBTD": "{x}.swapaxes(0, 1)",
    "TNBD": "{x}.swapaxes(0, 2)",
    "BT(ND)": "{x}.reshape(B, {x}.shape[1], heads, -1).swapaxes(1, 2)", "NTD": "{x}[None]",
    "TND": "{x}.swapaxes(0, 1)[None]", "BTD": "{x}[:, None]", "TD": "{x}[None, None]",
    "T(ND)": "{x}.reshape({x}.shape[0], heads, -1).swapaxes(0, 1)[None]",
    "TB(ND)": "xp.moveaxis({x}.reshape({x}.shape[0], B, heads, -1), 0, 2)",
    "BDNT": "xp.moveaxis({x}, 1, 3)", "B(ND)T": "{x}.reshape(B, heads, -1, {x}.shape[-1]).swapaxes(2, 3)",
    "BDT": "{x}.swapaxes(1, 2)[:, None]", "DT": "{x}.swapaxes(0, 1)[None, None]",
    FLAT: "{x}.reshape(B, -1, *{x}.shape[1:]).swapaxes(1, 2)",
    VARLEN: "{x}.reshape(B, T + 1, {x}.shape[1], -1)[:, :T].swapaxes(1, 2)",
}  # fmt: skip
LAYOUTS = tuple(INTO)
ONE_QUERY = {  # layouts of one query for each text and head, with or without an axis of tokens, and those of their keys
    "BND": ("BTND", "BNTD"), "BD": ("BTD",), "ND": ("TND", "NTD"), "D": ("TD",), "B1ND": ("BTND",), "BN1D": ("BNTD",),
}  # fmt: skip
INTO |= {"B1ND": "{x}.swapaxes(1, 2)", "BN1D": "{x}"}
OUT_OF |= {"B1ND": "{x}.swapaxes(1, 2)", "BN1D": "{x}"}
INTO |= {"BND": "{x}[:, :, 0]", "ND": "{x}[:, 0]", "BD": "{x}[:, 0]", "D": "{x}[0]"}
OUT_OF |= {"BND": "{x}[:, :, None]", "ND": "{x}[None, :, None]", "BD": "{x}[:, None, None]"}
OUT_OF |= {"D": "{x}[None, None, None]", "B(ND)": "{x}.reshape(B, N, 1, -1)", "(ND)": "{x}.reshape(1, N, 1, -1)"}
INTO |= {layout: line for layout, (_, line) in WEIGHTS.items()}
IN_GROUPS = {  # layouts of queries with an axis of key heads and one of the heads of each; of keys; of results
    "TGND": ("TND", ("TGND", "TND", "T(ND)")), "BTGND": ("BTND", ("BTGND", "BTND", "BT(ND)")),
    "BGNTD": ("BNTD", ("BGNTD", "BNTD", "BTND")),
}  # fmt: skip
INTO |= {
    "TGND": "{x}.swapaxes(0, 1).reshape(T, G, N // G, {x}.shape[-1])",
    "BTGND": "{x}.swapaxes(1, 2).reshape(B, T, G, N // G, {x}.shape[-1])",
    "BGNTD": "{x}.reshape(B, G, N // G, T, {x}.shape[-1])",
}
OUT_OF |= {
    "TGND": "{x}.reshape(T, N, {x}.shape[3]).swapaxes(0, 1)[None]",
    "BTGND": "{x}.reshape(B, T, N, {x}.shape[4]).swapaxes(1, 2)", "BGNTD": "{x}.reshape(B, N, T, {x}.shape[4])",
}  # fmt: skip
KEYS = {  # layouts of keys or values that are not that of the queries: lines to (B, G, S, D) from them, and back
    "BSD": ("{x}[:, 0]", "{x}[:, None]"), "BNDS": ("{x}.swapaxes(2, 3)", "{x}.swapaxes(2, 3)"),
}  # fmt: skip
KEY_LAYOUTS = (  # of queries; of keys and of values: one head without an axis, keys that are transposed
    ("BNTD", "BSD", "BSD"), ("BTND", "BSD", "BSD"), ("BT(ND)", "BSD", "BSD"), ("BNTD", "BNDS", "BNTD"),
)  # fmt: skip
MOVED = (  # the heads of a result elsewhere than those of the arrays
    ("BNTD", "BTND"), ("BNTD", "BT(ND)"), ("BTND", "BT(ND)"), ("BTND", "BNTD"), ("TBND", "TB(ND)"), ("TNBD", "TB(ND)"),
    ("TND", "T(ND)"), ("NTD", "T(ND)"), ("BND", "B(ND)"), ("ND", "(ND)"),
)  # fmt: skip
RESULT_LAYOUTS = INTO | {  # layouts of a result, and back
    "NTD": "{x}[0]", "TND": "{x}[0].swapaxes(0, 1)",
    "ND": "{x}[0, :, 0]", "BD": "{x}[:, 0, 0]", "D": "{x}[0, 0, 0]",
    "B(ND)": "{x}[:, :, 0].reshape(B, -1)", "(ND)": "{x}[0, :, 0].reshape(-1)",
    "BTD": "{x}[:, 0]", "TD": "{x}[0, 0]", "BDT": "{x}[:, 0].swapaxes(1, 2)", "DT": "{x}[0, 0].swapaxes(0, 1)",
}  # fmt: skip
BACK = OUT_OF | {x: OUT_OF[x].replace("heads", "N") for x in ("BT(ND)", "TB(ND)", "B(ND)T", "T(ND)")}
ARRAY_NAMES = {"": "query, key, value", "qkv": "qkv", "kv": "query, kv"}  # that are given, by what is stacked
AS_IT_IS = "{x}", "{x}"  # the lines of a value that is given as it is
OF_KEYS = "(BN)1S"  # the rank of a bias for each head and key, as Bloom has it
ONE_HEAD = "B1TS"  # of a function that takes a mask of each head beside as many key heads alone
RANKS = {  # of a mask or a bias
    "BNTS": ("{x}", "{x}"), "BTS": ("{x}[:, 0]", "{x}[:, None]"), "TS": ("{x}[0, 0]", "{x}[None, None]"),
    "BS": ("{x}[:, 0, 0]", "{x}[:, None, None]"), "NTS": ("{x}[0]", "{x}[None]"), ONE_HEAD: ("{x}[:, :1]", "{x}"),
    OF_KEYS: ("{x}[:, :, :1].reshape(-1, 1, {x}.shape[-1])", "{x}.reshape(B, -1, 1, {x}.shape[-1])"),
}  # fmt: skip
ADDED = "added, -inf drops"
MEANINGS = {
    "True attends": ("{x}", "({x} != 0)"),  # of whole numbers, too
    "True drops": ("~{x}", "({x} == 0)"),
    ADDED: ("xp.where({x}, 0.0, -xp.inf)", "({x} > -1e4)"),
    "1 attends": ("1.0 * {x}", "({x} > 0.5)"),
    "1 drops": ("1.0 - {x}", "({x} < 0.5)"),
}
LOWERS = "added, -1 lowers"  # of a mask that is added, to see that finite numbers are
OR_ADDED = ", or added"  # behind the meaning of a boolean mask that may also be numbers, as a bias
MASKS = {
    f"{rank}/{meaning}": (MEANINGS[meaning][0].format(x=RANKS[rank][0]), MEANINGS[meaning][1].format(x=RANKS[rank][1]))
    for rank in ("BNTS", "BTS", "TS", "BS", ONE_HEAD)
    for meaning in MEANINGS
}
WHOLE = "True attends, as 1"  # of a mask that is boolean, to see that numbers mean the same
PROBED = {  # kinds that are asked for alone: no function is described by them
    f"{rank}/{kind}": (f"xp.where({RANKS[rank][0]}, {values})", "")
    for rank in RANKS
    for kind, values in ((LOWERS, "0.0, -1.0"), (WHOLE, "1, 0"))
}
OF_EACH_BATCH = "{x}[:, None, None, None]"  # a number for each, beside (B, N, T, S)
OVER = "(1 / {x} if {x} else float('inf'))"
UNDER_A_ROOT = "a divisor, under a root"  # as query_pre_attn_scalar of Gemma
NUMBER = "a number"
WITH_CAUSAL = "a number, with causal alone"  # a window that counts if it is causal
WORD = "the word 'causal'"  # in the place of a mask
WIDE_KEYS = 100  # keys, above which a window has a quarter of them
WIDE = {"window": "both sides", "offset": "(B,)"}  # the kinds of which one number is the plainest value
REACH = {"w keys, its own among them": "w - 1", "w keys beside its own": "w", "half of w keys beside its own": "w // 2"}
SIDES = {  # what is seen ahead
    "before": "0", "on both sides": "{r}", "before, and all that comes after": "float('inf')",
}  # fmt: skip
MASKING: dict[str, dict[str, str]] = {  # what a mask does, as values of the axes of the table
    "minus infinity": {}, "weights set to 0 after the softmax": {"weights": "masked after"},
    "scores set to 0": {"fill": "0"},
}  # fmt: skip


ARRAY_COUNTS = {"qkv": "3", "kv": "2"}  # of the arrays in one
PAST_PAIRS = (  # parameters for the keys and values of earlier calls
    ("past_key", "past_value"), ("past_k", "past_v"), ("k_cache", "v_cache"), ("cache_k", "cache_v"),
    ("k_past", "v_past"), ("key_cache", "value_cache"), ("cached_key", "cached_value"),
)  # fmt: skip
PAST_IN_ONE = "past_key_value", "past_key_values", "layer_past", "past_kv", "kv_cache", "past", "cache"  # or None
CACHED = "cached"  # a pack of the last keys and values; the others lie in two arrays that have room for more
CACHED_LAYOUTS = {"BTND": ("", "BT(ND)"), "BNTD": ("", "BTND", "BT(ND)"), "BND": ("", "B(ND)")}  # and those of results
SHARED = {"kv scaled": "2 * query", "kv unscaled": "query"}  # packs of keys that are the values, 4 times as wide
JOINED = {"N": 1, "D": 3}  # axes of (B, N, T, D) on which arrays are joined, before they have another layout


def axes_of(layout: str, pack: str = "") -> str:
    """The axes of a layout in words."""
    joined = {"*": "N·D", "+": "tokens", "&": "B·N", "=": "B·T", "M": "N·D" if "N" in layout else "D"}
    joined |= {"N": "N/G"} if layout in IN_GROUPS else {}
    letters = (
        layout.replace("(B)", "").replace("(ND)", "*").replace("(BT)", "+").replace("(BN)", "&").replace("(B·T)", "=")
    )
    axes = [joined.get(x, x) for x in letters]
    name, _, axis = pack.partition(" ")
    if axis in (*JOINED, "W"):
        count, at = ARRAY_COUNTS[name], next(k for k, x in enumerate(axes) if "D" in x)
        at = -1 if axis == "W" and layout[0] in "CM" else at
        axes[at] = f"{count}·{axes[at]}" if axis in "NW" else axes[at].replace("D", f"{count}·D")
    elif name and pack not in (*SHARED, CACHED):
        axes.insert(int(axis), ARRAY_COUNTS[name])
    return f"({', '.join(axes)})"


def _of_segments(t: int, s: int, seed: int = 0, batch: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Segments of about two tokens, those of keys a token ahead; each query has keys."""
    keys = (np.arange(s) + 1 + seed + np.arange(batch)[:, None]) // 2
    queries = np.clip((np.arange(t) + seed + np.arange(batch)[:, None]) // 2, keys[:, :1], keys[:, -1:])
    return queries.astype(np.int32), keys.astype(np.int32)


def _of(axis: str, *but: str) -> tuple[str, ...]:
    return tuple(x for x in TABLE[axis] if x not in (IGNORED, *but) and not x.startswith("without the block"))


WINDOWS = tuple(sorted(_of("window", "before"), key=lambda x: ["its own key between", "end", x].index(x)))
READ = "True attends", "first batch", IN_TURN
OF_BATCH = "first batch", "largest of the batch"


class Row(NamedTuple):
    """An option."""

    names: tuple[str, ...]  # of keywords, in attendax and elsewhere
    # the conventions that are found with it, and the values that are tried
    axes: Mapping[str, tuple[str, ...]]
    values: tuple[Any, ...]  # of small inputs; by the first an example is shown, by the last two conventions are found
    # how a value is given: for each a line of Python to it, and one back
    kinds: Mapping[str, tuple[str, str]] = {"": ("{x}", "{x}")}


PAIR = "q and kv"  # segment ids in a named tuple, as in JAX's flash attention for TPU
OF_PADDING = "key_padding_mask", "padding_mask", "key_mask", "value_mask"  # masks that may be of lengths of keys
OPTIONS = {
    "is_causal": Row(("is_causal", "causal", "use_causal_mask", "causal_mask", "unidirectional"),
        {"causal": _of("causal"), "empty": _of("empty")}, (True,),
        {"": ("{x}", "{x}"), WORD: ("('causal' if {x} else None)", "({x} == 'causal')")}),
    "mask": Row(
        ("mask", "attn_mask", "attention_mask", "att_mask", "visible", *OF_PADDING,
         "src_mask", "m", "adj", "adjacency", "adj_mask", "causal_mask", "valid"),
        {"mask": READ, "masking": tuple(MASKING)},
        (lambda t, s: np.tile(np.arange(s) < max(s - 1, 1), (1, 1, t, 1)), lambda t, s: np.zeros((1, 1, t, s), bool)),
        {kind: lines for kind, lines in MASKS.items() if not kind.startswith(ONE_HEAD)},
    ),
    "bias": Row(("bias", "ab", "attn_bias", "attention_bias", "position_bias", "pair_bias", "alibi",
         "rel_pos_bias", "relative_position_bias", "relative_bias", "rel_bias", "pos_bias", "attn_mask", "mask"),
        {"bias": ("added", "subtracted", "first batch", "first head", IN_TURN), "order": _of("order")},
        (lambda t, s: np.broadcast_to(np.arange(1.0, s + 1, dtype=np.float32), (1, 1, t, s)).copy(),),
        {rank: RANKS[rank] for rank in ("BNTS", "NTS", OF_KEYS, "TS")}),
    "scale": Row(
        ("scale", "softmax_scale", "sm_scale", "scaling", "scaling_factor", "factor", "logits_scale", "norm_factor",
         "temperature", "qk_scale", "scale_factor", "query_pre_attn_scalar", "beta"),
        {"given_scale": _of("given_scale")}, (0.25, 0.0, -1.0, 0.5, 2.0),
        {"a factor": ("{x}", "{x}"), "a divisor": (OVER, OVER), UNDER_A_ROOT: (f"{OVER} ** 2", "{x} ** -0.5")},
    ),
    "softcap": Row(
        ("softcap", "logits_soft_cap", "soft_cap", "logit_cap", "attn_logit_softcapping", "attn_logits_soft_cap",
         "cap"),
        {"softcap": _of("softcap"), "order": _of("order")}, (0.5, 3.0),
    ),
    "window": Row(
        ("window", "window_size", "sliding_window", "local_window_size", "sliding_window_size", "window_left",
         "attention_window", "lookback", "band", "radius"),
        {"window": WINDOWS, "reach": tuple(REACH), "side": tuple(SIDES)}, (1, 0, 2, 5),
        {NUMBER: AS_IT_IS, WIDE["window"]: ("({x}, {x})", "{x}[0]"), WITH_CAUSAL: AS_IT_IS},
    ),
    "return_lse": Row(
        ("return_lse", "return_residual", "return_logsumexp", "return_softmax_lse", "with_lse", "save_lse"),
        {"lse": _of("lse")}, (True,), {
            "BNT": ("{x}", "{x}"), "BTN": ("{x}.swapaxes(1, 2)", "{x}.swapaxes(1, 2)"),
            "N(BT)": ("{x}.reshape(N, B, T + 1)[..., :T].swapaxes(0, 1)",) * 2,
        }),
    "key_lengths": Row(
        ("key_lengths", "key_value_seq_lengths", "kv_lengths", "kv_seq_lengths", "key_length", "kv_lens", "k_lens",
         "seqlens_k", "seqused_k", "cache_seqlens", "cache_lengths", "valid_lens", "lengths", "seq_lengths",
         *OF_PADDING),
        {"key_lengths": _of("key_lengths"), "empty": _of("empty")},
        (lambda t, s: np.array([max(s - 1, 1)], np.int32), lambda t, s: np.zeros(1, np.int32)),
        {"": AS_IT_IS} | {  # a mask of keys, beside another mask
            f"BS/{x}": (MEANINGS[x][0].format(x="(xp.arange(S) < {x}[:, None])"), MEANINGS[x][1] + ".sum(-1)")
            for x in ("True attends", "True drops")
        },
    ),
    "segments": Row(  # two keywords: the kind is the name of the second
        ("query_segment_ids", "q_segment_ids", "segment_ids_q", "segment_ids", "decoder_segment_ids", "doc_ids"),
        {"segments": _of("segments", "0 alone")}, (_of_segments,),
        dict.fromkeys(("", PAIR, "key_segment_ids", "kv_segment_ids", "k_segment_ids", "segment_ids_k"), AS_IT_IS),
    ),
    "offset": Row(  # the last: positions show in rules alone
        ("offset", "q_offset", "query_offset", "causal_offset", "position_offset", "start_pos", "cache_len"),
        {"offset": _of("offset", *OF_BATCH)}, (1, 2),
        {NUMBER: ("{x}", "{x}"), WIDE["offset"]: ("xp.full((B,), {x})", "{x}")},
    ),
}  # fmt: skip
AXIS = {ours: next(iter(row.axes)) for ours, row in OPTIONS.items()}  # that says whether an option is ignored
RULES = "is_causal", "window"  # of positions
MASKED = {"mask", "is_causal", "window", "key_lengths", "segments"}  # beside which a query may be without any key
NO_LIMIT, NUMBERED = "is no limit", "is a number"  # a side of a window that is negative, or None
PAIRS = (3, 0), (0, 2), (1, 1)  # windows of two sides
NEGATIVE = (-1, -1), (-1, 0), (-1, 2), (2, -1)
HALF_OPEN = (None, 2), (1, None)
HEAD_NAMES = (
    "num_heads", "n_heads", "heads", "n_head", "h", "nhead", "num_attention_heads", "attention_heads", "head_count",
    "num_q_heads", "q_num_heads", "NH",
)  # fmt: skip
GROUPED_NAMES = ("enable_gqa",)
DROPOUT_NAMES = (
    "dropout_p", "dropout_rate", "dropout", "p_dropout", "attn_dropout", "rate", "p", "dropout_prob", "drop_prob",
    "drop_rate", "attention_dropout", "attn_drop", "attn_pdrop",
)  # fmt: skip
RANDOM_NAMES = ("rng", "prng", "dropout_rng", "key_rng")  # keywords for what dropout is drawn by
UNREAD_NAMES = (
    "training", "train", "deterministic", "inference", "key", "implementation", "precision", "dtype", *RANDOM_NAMES,
)  # fmt: skip


QUERY_LENGTHS = "query_seq_lengths", "query_lengths", "q_seq_lengths", "q_lens"
NAME_PARTS = {  # of names that no row has: what they may be
    "mask": ("mask", "bias", "is_causal"), "causal": ("is_causal",), "bias": ("bias",), "scal": ("scale",),
    "multiplier": ("scale",), "window": ("window",), "cap": ("softcap",), "len": ("key_lengths",),
    "pad": ("mask", "key_lengths"),
}  # fmt: skip
BY_DEFAULT: dict[type, tuple[str, ...]] = {  # of names that say nothing: what a parameter of such a default may be
    type(None): ("mask", "key_lengths", "scale"), float: ("scale",),
}  # fmt: skip


def is_dropout_mask(name: str) -> bool:
    """Tell whether a parameter is the mask of the weights that dropout keeps."""
    return "drop" in name and "mask" in name


def is_no_option(name: str) -> bool:
    """Tell whether a name is of lengths of queries, of factors of weights or which dropout keeps, or of one number."""
    of_heads = name in ("head_mask", "layer_head_mask")
    return name.startswith("q") or of_heads or is_dropout_mask(name) or name in (*LONGEST_NAMES, *DROPOUT_NAMES)


def named(name: str) -> list[str]:
    """The options that a keyword may be, by its name."""
    known = [ours for ours, row in OPTIONS.items() if name in row.names]
    parts = [] if is_no_option(name) else [part for part in NAME_PARTS if part in name.lower()]
    return known or list(dict.fromkeys(x for part in parts for x in NAME_PARTS[part]))


def guesses(name: str, default: Any) -> tuple[str, ...]:
    """The options that a keyword of a name that says nothing may be, by its default."""
    return () if is_no_option(name) or named(name) else BY_DEFAULT.get(type(default), ())


def first_kind(ours: str) -> str:
    """The way in which attendax is given an option."""
    return next(iter(OPTIONS[ours].kinds)) if ours in OPTIONS else ""


def kind_of(ours: str, kind: str, names: Collection[str]) -> str:
    """A kind of one function as another has it, by the names of its keywords: of segments their second one."""
    return next((x for x in OPTIONS[ours].kinds if x in names), kind) if ours == "segments" else kind


def _lines(ours: str, kind: str) -> tuple[str, str]:
    """The lines to a kind and back; numbers for a mask have its rank."""
    kinds = {**PROBED, **MASKS, **RANKS, **OPTIONS[ours].kinds}
    return AS_IT_IS if is_one_for_both(ours, kind) else kinds[kind.removesuffix(OR_ADDED)]


def is_one_for_both(ours: str, kind: str) -> bool:
    """Tell whether one keyword has the segment ids of queries and of keys: its kind is then its name."""
    return ours == "segments" and kind not in OPTIONS[ours].kinds


def to(ours: str, kind: str, x: str) -> str:
    """The line for a value in a kind."""
    return _lines(ours, kind)[0].format(x=x)


def back(ours: str, kind: str, x: str) -> str:
    """The line for the value that is given in a kind."""
    return _lines(ours, kind)[1].format(x=x)


def is_own(ours: str, x: Any) -> bool:
    """Tell whether a value is given as it is: two sides of a window, an offset of each batch."""
    return (ours == "window" and isinstance(x, tuple)) or (ours == "offset" and isinstance(x, np.ndarray))


def given(ours: str, kind: str, x: Any, B: int, S: int) -> Any:
    """The value of an option as it is given in a kind."""
    text, sizes = to(ours, kind, "x") if ours in OPTIONS else "x", {"B": B, "S": S}
    return x if text == "x" or isinstance(x, bool) or is_own(ours, x) else eval(text, {"xp": np, "x": x} | sizes)


def drawn(ours: str, kind: str, sizes: tuple[int, ...], seed: int = 0, *, each_head: bool = False) -> Any:
    """A value for arrays of those sizes; of a mask every row has a key."""
    rng, (B, N, T, S), rank = np.random.default_rng((ord(ours[0]), seed)), sizes[:4], kind.split("/")[0]
    turn = -1 if (seed + 1) // 2 % 2 else 1  # so that the first batch has not always the largest
    fewer = {"TS": (1, 1, T, S), "BS": (B, 1, 1, S), "BTS": (B, 1, T, S), "NTS": (1, N, T, S), OF_KEYS: (B, N, 1, S)}
    fewer[ONE_HEAD] = fewer["BTS"]
    if ours == "mask":
        shape = fewer.get(rank, (B, N if each_head else 1, T, S))
        mask = rng.random(shape) < 0.6
        mask[..., 0] = True
        return mask
    if ours == "bias":
        return rng.standard_normal(fewer.get(rank, (B, N, T, S))).astype(np.float32)
    if ours == "key_lengths":
        return np.resize([S - 1, max(S - 3, 1)][::turn], B).astype(np.int32)
    if ours == "segments":
        queries, keys = _of_segments(T, S, seed, B)
        return (keys, keys) if is_one_for_both(ours, kind) and T == S else (queries, keys)
    if S > WIDE_KEYS and ours in ("window", "offset"):  # in long texts one that small ones do not hold
        far = S // 4 if ours == "window" or S - T < S // 4 else S - T
        return np.maximum(far - np.arange(B), 0)[::turn] if kind == WIDE["offset"] else far
    if ours == "offset" and kind == WIDE[ours]:
        return np.arange(B, 0, -1)[::turn]
    return OPTIONS[ours].values[-1]


def beside(ours: str, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments beside an option, so that it shows: a rule of positions beside an offset."""
    return {x: OPTIONS[x].values[-1] for x in [x for x in RULES if x in offered][:1]} if ours == "offset" else {}


def own_values(ours: str, option: Any, how: Mapping[str, str], B: int) -> Iterator[Any]:
    """Values that are given as they are, of a kind that has several numbers; sides that are negative or None if taken.

    ``how`` has the conventions of a function.
    """
    if option.form != WIDE.get(ours, NUMBER):
        return
    if ours == "offset":
        yield from (np.arange(B, 0, -1), np.arange(B) + 1)
    if ours == "window":
        yield from (*PAIRS, *NEGATIVE * bool(how["negative"]), *HALF_OPEN * bool(how["none"]))


# Required arguments beside the arrays: by their names they get the value that makes a call the law's plain call.
THIRD_NAMES = ("key", "keys", "k", "value", "values", "v", "payload")  # an array that may be left out, as in Keras
CONTEXT_NAMES = "context", "memory", "encoder_hidden_states", "key_value_states", "x_kv"  # of what keys are made of
OF_MODULE = {  # attributes of a module that attention functions read
    "num_key_value_groups": "N // G", "is_causal": "False", "training": "False", "attention_dropout": "0.0",
    "dropout": "0.0", "num_key_value_heads": "G", **dict.fromkeys(("scaling", "scale"), "D ** -0.5"),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "h"), "N"),
    **dict.fromkeys(("head_dim", "head_size", "d_head", "d_k"), "D"),
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "n_embd", "all_head_size"), "N * D"),
    **dict.fromkeys(("attention_probs_dropout_prob", "attn_pdrop", "attn_dropout", "dropout_p", "p"), "0.0"),
    "is_decoder": "False",
    "sinks": "xp.zeros(N, dtype=query.dtype) - xp.inf",  # of gpt-oss: they add nothing
}  # fmt: skip
MODULE_STUB = f"types.SimpleNamespace({', '.join(f'{k}={x}' for k, x in OF_MODULE.items())})"
WIDTH_NAMES = "d_k", "dk", "d_head", "head_dim", "dim_head", "head_size", "dim_k", "key_dim"
GROUP_NAMES = "n_rep", "num_key_value_groups", "num_groups"
KEY_HEADS = (
    "kv_n_heads", "kv_num_heads", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head",
    "heads_kv", "n_heads_kv", "num_heads_kv", "nheads_k", "num_heads_k", "n_kv", "h_kv",
)  # fmt: skip
OF_NO_OPTION = *HEAD_NAMES, *KEY_HEADS, *UNREAD_NAMES  # names
BEGINS = {  # of packed sequences: where each begins; one list for both raises an error if they are not as many
    "cu_seqlens_q": "T", "cu_seq_q": "T", "cu_seqlens": "[T][T != S]",
    "cu_seqlens_k": "S", "cu_seq_k": "S", "cu_seqlens_kv": "S",
}  # fmt: skip
LONGEST_NAMES = {
    **{f"max_{x}": "T" for x in ("seqlen_q", "seqlen", "q")},
    **{f"max_{x}": "S" for x in ("seqlen_k", "seqlen_kv", "k")},
}
OF_PACKS = "xp.asarray([b * ({0} + 1) + k for b in range(B) for k in (0, {0})] + [B * ({0} + 1)], dtype=xp.int32)"
NORM_WEIGHTS = [f"{x}_norm_{y}" for x in "qk" for y in ("weight", "scale", "w", "gamma")]
MEANT = {  # Python in D, the width of a head, N and G, the heads of queries and of keys
    **dict.fromkeys(DROPOUT_NAMES, "0.0"),
    **{name: "None" for ours, row in OPTIONS.items() for name in row.names},
    **dict.fromkeys(OPTIONS["is_causal"].names + OPTIONS["return_lse"].names, "False"),
    **dict.fromkeys(OPTIONS["scale"].names, "D ** -0.5"),
    **dict.fromkeys(("temperature", "norm_factor"), "D ** 0.5"),  # that divide
    **dict.fromkeys(OPTIONS["offset"].names, "0"),
    **dict.fromkeys(("training", "train"), "False"),
    **{name: OF_PACKS.format(x) for name, x in BEGINS.items()},
    **LONGEST_NAMES,
    **{"B": "B", "batch_size": "B", "bsz": "B"},
    **dict.fromkeys(("T", "seq_len", "seq_length", "tgt_len", "q_len"), "T"),
    **dict.fromkeys(("src_len", "kv_len", "k_len"), "S"),
    **dict.fromkeys(("C", "embed_dim", "d_model", "hidden_size", "n_embd", "embed_size"), "N * D"),
    "sinks": OF_MODULE["sinks"],
    "deterministic": "True",
    "mode": "'eval'",
    **dict.fromkeys(RANDOM_NAMES, "None"),
    **dict.fromkeys(("module", "self", "config", "cfg"), MODULE_STUB),
    **dict.fromkeys(("slopes", "alibi_slopes"), "xp.zeros((N,))"),
    **dict.fromkeys(PAST_IN_ONE, "None"),
    **dict.fromkeys(NORM_WEIGHTS, "xp.ones((D,), dtype=query.dtype)"),
}
OPEN_MASKS = tuple(  # of a mask that may not be None: nothing is masked by it, where True attends, or drops
    f"xp.ones({shape}) {sign} 0" for sign in "><" for shape in ("(B, 1, T, S)", "(T, S)", "(B, S)", "(B, T, S)")
)
OF_QUERIES = "positions", "position_ids", "q_positions", "query_positions", "q_pos", "pos_q", "cache_position"
OPEN_POSITIONS: dict[str, tuple[str, ...]] = {  # by name: those of queries are the last of the keys'
    name: (line, f"{line} + xp.zeros((B, 1), dtype=xp.int32)")
    for names, line in (
        (OF_QUERIES, "xp.arange(S - T, S)"),
        (("k_positions", "kv_positions", "key_positions", "k_pos", "kv_pos", "pos_k"), "xp.arange(S)"),
    )
    for name in names
}
OPEN_POSITIONS |= dict.fromkeys(("pos", "position", "cur_pos", "current_pos"), ("S - 1", *OPEN_POSITIONS["q_pos"]))
OPEN_SINKS = OF_MODULE["sinks"], "S"  # of Q, K, V, S as of gpt-oss; or the number of keys
ROTATED = "(T, D)", "(T, D // 2)", "(1, T, D)", "(1, T, D // 2)", "(1, 1, T, D)", "(1, T, 1, D)", "(1, T, 1, D // 2)"
OPEN_ROTATIONS = {  # by name: nothing is rotated by them
    name: tuple(line.format(shape) for shape in ROTATED)
    for names, line in (
        (("cos", "freqs_cos", "rope_cos", "rotary_cos", "cos_cached"), "xp.ones({}, dtype=query.dtype)"),
        (("sin", "freqs_sin", "rope_sin", "rotary_sin", "sin_cached"), "xp.zeros({}, dtype=query.dtype)"),
        (("freqs_cis", "freqs_complex"), "xp.ones({}) + 0j"),
    )
    for name in names
}
MEANT |= dict.fromkeys((*OPEN_POSITIONS, *OPEN_ROTATIONS, "S"), "None")
MEANT |= dict.fromkeys(QUERY_LENGTHS, "xp.zeros((B,), dtype=xp.int32) + T")
OPEN_SEGMENTS = tuple(f"xp.ones((B, {x}), dtype=xp.int32)" for x in "ST")  # one segment, and no padding
ZERO_BIASES = tuple(f"xp.zeros({x})" for x in ("(B, N, T, S)", "(B * N, 1, S)", "(B, N, 1, S)", "(N, T, S)"))  # add 0


class Completed(NamedTuple):
    """Parameters of a function; those that are not arrays have a value."""

    required: list[str]  # the arrays, and the number of heads
    meant: Mapping[str, str]  # Python, by name
    by_name: tuple[str, ...] = ()  # the arrays, where something else comes before one of them


def _cached(names: Sequence[str], required: Sequence[str]) -> dict[str, str]:
    """Python for the keys and values of earlier calls, and for their number, beside query, key and value."""
    pair = next((x for x in PAST_PAIRS if {*x} <= {*required}), ())
    others = [x for x in required if x not in (*pair, *HEAD_NAMES)]
    at = others[3:] or [x for x in names if x not in required and "offset" in named(x)]
    of_arrays = {x: f"{CACHED} {array}" for x, array in zip(pair, ("key", "value"), strict=True)} if pair else {}
    return of_arrays | {at[0]: "S - T"} if pair and len(others[:3]) == 3 and len(at) == 1 else {}


def completed(
    names: Sequence[str], required: Sequence[str], defaults: Mapping[str, Any], source: str = ""
) -> Completed:
    """Sort required parameters into arrays and others, by their names; an optional config may have the heads."""
    meant = {name: MEANT[name] for name in names if name in BEGINS or (name in required and name in MEANT)}
    meant |= {x: "G" for x in names if x in KEY_HEADS}
    meant |= {x: "N // G" for x in names if x in GROUP_NAMES}
    meant |= {x: "D" for x in names if x in WIDTH_NAMES and defaults.get(x, ...) is not None}
    optional = (x for x in ("config", "cfg") if x in defaults and defaults[x] is None)
    meant |= {x: MODULE_STUB for x in optional if re.search(rf"\b{x}\.({'|'.join(HEAD_NAMES)})\b", source)}
    meant |= _cached(names, required)
    merged = any(y in HEAD_NAMES for y in names)
    others = [x for x in required if x not in (*meant, *HEAD_NAMES) and not WEIGHT.fullmatch(x)]
    if others:  # else weights are the arrays
        of_torch = re.search(r"\blinear\(", source)  # whose weights have the axes (out, in)
        of_width = functools.partial(unchanging, merged=merged, apart=len(others) >= 3, axis=0 if of_torch else 1)
        meant |= {x: of_width(x) for x in required if WEIGHT.fullmatch(x)}
    for name in required[3:]:  # by a part of its name
        for ours in named(name)[:1]:
            meant.setdefault(name, MEANT.get(ours, "None"))
    if required[:1] == ["self"] and [x[0] for x in required[1:3]] == ["k", "v"]:
        del meant["self"]  # which is the query, as of a method of arrays
    left = [name for name in required if name not in meant]
    arrays = [name for name in left if name not in HEAD_NAMES]
    if len(arrays) == 2 and len(names) > 2 and names[2] in THIRD_NAMES and defaults.get(names[2], ...) is None:
        arrays = list(names[:3])
        left = [*arrays, *(name for name in left if name in HEAD_NAMES)]
    weights = {role: x for x in required for role, kind in [role_of(x)] if kind == "w" and role != "o"}
    of_two = {*weights} in ({"q", "kv"}, {*"qkv"})  # it makes queries, keys and values of x, or of two arrays
    if of_two and len(arrays) == 1:
        arrays += [x for x in names if x in CONTEXT_NAMES and defaults.get(x, ...) is None][:1]
    if 1 <= len(arrays) <= 1 + of_two and (of_two or {*weights} == {"qkv"}):
        meant = {k: x for k, x in meant.items() if k not in weights.values()} | dict(zip(arrays, ONE_HOT, strict=False))
        arrays = [x for x in required if x in weights.values()]
        left = [*arrays, *(name for name in left if name in HEAD_NAMES)]
        return Completed(left, meant, tuple(arrays))
    last = max((names.index(name) for name in arrays), default=0)
    return Completed(left, meant, tuple(arrays) if {*meant, *HEAD_NAMES} & {*names[:last]} else ())
