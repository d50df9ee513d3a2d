"""How arrays and options are given to a function: for each way a line of Python to it, and one back.

On this side arrays are (B, N, T, D), masks (B or 1, N or 1, T, S) with True = attend, a scale is a factor and a window
a number.
"""

from typing import Any

import numpy as np

INTO = {  # a layout
    "BNTD": "{x}", "BTND": "{x}.swapaxes(1, 2)", "TBND": "xp.moveaxis({x}, 2, 0)", "NBTD": "{x}.swapaxes(0, 1)",
    "BT(ND)": "{x}.swapaxes(1, 2).reshape(B, {x}.shape[2], -1)", "NTD": "{x}", "TND": "{x}.swapaxes(0, 1)",
    "BTD": "{x}", "TD": "{x}",
}  # fmt: skip
OUT_OF = {
    "BNTD": "{x}", "BTND": "{x}.swapaxes(1, 2)", "TBND": "xp.moveaxis({x}, 0, 2)", "NBTD": "{x}.swapaxes(0, 1)",
    "BT(ND)": "{x}.reshape(B, {x}.shape[1], heads, -1).swapaxes(1, 2)", "NTD": "{x}[None]",
    "TND": "{x}.swapaxes(0, 1)[None]", "BTD": "{x}[:, None]", "TD": "{x}[None, None]",
}  # fmt: skip
FIRST = {"NTD": "[0]", "TND": "[0].swapaxes(0, 1)", "BTD": "[:, 0]", "TD": "[0, 0]"}  # a result, where axes lack
LAYOUTS = tuple(INTO)
MOVED = (  # the heads of a result elsewhere than those of the arrays
    ("BNTD", "BTND"), ("BNTD", "BT(ND)"), ("BTND", "BT(ND)"), ("BTND", "BNTD"), ("TBND", "TB(ND)"),
)  # fmt: skip
GIVEN = INTO | {"TB(ND)": "xp.moveaxis({x}, 2, 0).reshape({x}.shape[2], B, -1)"}  # layouts of a result, and back
BACK = OUT_OF | {
    "BT(ND)": OUT_OF["BT(ND)"].replace("heads", "N"),
    "TB(ND)": "xp.moveaxis({x}.reshape({x}.shape[0], B, N, -1), 0, 2)",
}
ARRAYS = {"": "query, key, value", "qkv": "qkv", "kv": "query, kv"}  # that are given, by what is stacked
RANKS = {  # of a mask or a bias
    "BNTS": ("{x}", "{x}"), "BTS": ("{x}[:, 0]", "{x}[:, None]"), "TS": ("{x}[0, 0]", "{x}[None, None]"),
    "BS": ("{x}[:, 0, 0]", "{x}[:, None, None]"), "NTS": ("{x}[0]", "{x}[None]"),
}  # fmt: skip
MEANINGS = {
    "True attends": ("{x}", "({x} != 0)"),  # of whole numbers, too
    "True drops": ("~{x}", "({x} == 0)"),
    "added, -inf drops": ("xp.where({x}, 0.0, -xp.inf)", "({x} > -1e4)"),
    "1 attends": ("1.0 * {x}", "({x} > 0.5)"),
    "1 drops": ("1.0 - {x}", "({x} < 0.5)"),
}
SCALINGS = {"a factor": ("{x}", "{x}"), "a divisor": ("1 / {x}", "1 / {x}")}
WINDOWS = {"a number": ("{x}", "{x}"), "both sides": ("({x}, {x})", "{x}[0]")}
LSE_LAYOUTS = {"BNT": "{x}", "BTN": "{x}.swapaxes(1, 2)"}
STRAIGHT = {
    "mask": "BNTS/True attends", "bias": "BNTS", "scale": "a factor", "window": "a number", "return_lse": "BNT"
}  # fmt: skip


def mask_to(form: str, x: str) -> str:
    """A mask in a form, "BNTS/True drops"."""
    rank, meaning = form.split("/")
    return MEANINGS[meaning][0].format(x=RANKS[rank][0].format(x=x))


def mask_from(form: str, x: str) -> str:
    """The mask that is given in a form."""
    rank, meaning = form.split("/")
    return MEANINGS[meaning][1].format(x=RANKS[rank][1].format(x=x))


def given(ours: str, form: str, x: Any) -> Any:
    """The value of an option as it is given in a form."""
    if ours in ("mask", "bias"):
        text = mask_to(form, "x") if ours == "mask" else RANKS[form][0].format(x="x")
    else:
        text = {"scale": SCALINGS, "window": WINDOWS}.get(ours, {}).get(form, ("{x}",))[0].format(x="x")
    return x if text == "x" or isinstance(x, tuple) else eval(text, {"xp": np, "x": x})


NAMES = {  # of keywords, in attendax and elsewhere
    "mask": (
        "mask", "attn_mask", "attention_mask", "att_mask", "visible", "key_padding_mask", "padding_mask", "key_mask",
        "src_mask", "m",
    ),
    "bias": ("bias", "attn_bias", "attention_bias", "position_bias", "pair_bias", "alibi", "attn_mask", "mask"),
    "is_causal": ("is_causal", "causal", "use_causal_mask", "causal_mask"),
    "scale": (
        "scale", "softmax_scale", "sm_scale", "scaling", "factor", "logits_scale", "norm_factor", "temperature",
        "qk_scale", "scale_factor",
    ),
    "softcap": (
        "softcap", "logits_soft_cap", "soft_cap", "logit_cap", "attn_logit_softcapping", "attn_logits_soft_cap", "cap",
    ),
    "window": (
        "window", "window_size", "sliding_window", "local_window_size", "sliding_window_size", "window_left",
        "attention_window",
    ),
    "return_lse": ("return_lse", "return_residual", "return_logsumexp", "return_softmax_lse", "with_lse", "save_lse"),
}  # fmt: skip
HEADS = ("num_heads", "n_heads", "heads", "n_head", "h", "nhead")
GROUPED = ("enable_gqa",)
DROPOUT = ("dropout_p", "dropout_rate", "dropout", "p_dropout", "attn_dropout", "rate")
IGNORED = ("training", "train", "deterministic", "implementation", "precision", "rng", "dropout_rng", "key_rng")
