"""Layouts of arrays of a function: for each a line of Python to it, from (B, N, T, D), and one back."""

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
