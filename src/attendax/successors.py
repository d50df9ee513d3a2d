"""Removed commands and options: for one release each names its successor."""

from collections.abc import Sequence

XARGS = "xargs -P runs several checks at a time (docs/conformance.md)"
CLONE = "in a clone, python -m benchmarks"
EXEC = "check --exec runs a program around the C function (docs/without-python.md)"
PATHS = {  # of functions that had an adapter
    **dict.fromkeys(("attendax", "attendax-dense", "attendax-blockwise"), "attendax:attention"),
    "attendax-spec": "attendax.spec:attention",
    **dict.fromkeys(("jax.nn", "jax.nn-cudnn"), "jax.nn:dot_product_attention"),
    **dict.fromkeys(("tokamax-xla", "tokamax-xla_chunked"), "tokamax:dot_product_attention"),
    "flax": "flax.linen:dot_product_attention",
    "flax-nnx": "flax.nnx:dot_product_attention",
    "keras": "keras.ops:dot_product_attention",
    "memory-efficient-attention": "memory_efficient_attention:efficient_dot_product_attention_jax",
    "flash-attention-jax": "flash_attention_jax:flash_attention",
    "torch-sdpa": "torch.nn.functional:scaled_dot_product_attention",
    "torch-flex": "torch.nn.attention.flex_attention:flex_attention",
    "mlx": "mlx.core.fast:scaled_dot_product_attention",
}
LAYERS = ("equinox", "haiku", "torch-mha", "torch-mha-weights", "onnx-reference", "onnxruntime")  # that had one
PINNED = "check detects {}; a contract file pins it, {}"
MEANT = 'check detects it; for a program or a model, state it by --expect "{}"'
SUCCESSORS = {  # a command, or a command with an option
    "check --lib": EXEC,
    "check --signature": EXEC,
    **{f"check --{name}": XARGS for name in ("candidates", "function", "workers")},
    "check --junit": "pytest --junitxml writes JUnit; check --json has all cases",
    "check --html": "check --markdown writes the report",
    "judge --junit": "judge --json has all cases",
    "judge --html": "judge --markdown writes the report",
    **{f"{name} --safetensors": "each array is a file .npy" for name in ("inputs", "vectors")},
    "check --all-installed": f"{CLONE} matrix judges all libraries",
    "check --all-models": f"{CLONE} models judges all models",
    "check --adapter": "write a function with the usual signature that calls yours (docs/conformance.md)",
    "check --list-adapters": "name a function by its path, module:function",
    "check --arrays": PINNED.format("the framework", '[called] arrays = "torch"'),
    "check --layout": PINNED.format("the axes", '[called] layout = "BTND"'),
    "check --rename": PINNED.format("the keywords", '[keywords] attn_mask = "mask"'),
    "check --lacks": """a contract file states it, [called] lacks = ["grouped heads"]""",
    "check --backward": "the function carries its gradients, attention.backward = attention_backward",
    "check --mask-true": MEANT.format("mask=True drops"),
    "check --lse-base": MEANT.format("lse=base 2"),
    **{f"{name} --causal": MEANT.format("causal=aligned to the end") for name in ("check", "judge")},
    **{f"{name} --empty-rows": MEANT.format("empty=NaN") for name in ("check", "judge")},
    "check --output": "check --json and --markdown write a report",
    "bench": f"{CLONE} bench times attention",
    "search": "docs/examples/nearest_lines.py does it with attendax embed --output and NumPy",
    **{f"check {name}": f"name the function by its path, {path}" for name, path in PATHS.items()},
    **{f"check {name}": f"{CLONE} matrix judges it" for name in LAYERS},
    "export-onnx": "check --onnx judges a model; no command writes tests of ONNX backends",
}


def successor(argv: Sequence[str]) -> str:
    """The line on what replaces a removed command or option of these arguments; empty if there is none.

    Example:
        >>> successor(["check", "--lib=attention.so"])
        'check --lib was removed: check --exec runs a program around the C function (docs/without-python.md)'
        >>> successor(["check", "mine:attention"])
        ''
    """
    command = argv[0] if argv else ""
    words = [word.partition("=")[0] for k, word in enumerate(argv) if k == 1 or (k and word.startswith("-"))]
    names = [command, *(f"{command} {word}" for word in words)]
    if {"--model", "--layer"}.intersection(word.partition("=")[0] for word in argv):  # have options of their own
        return ""
    return next((f"{name} was removed: {SUCCESSORS[name]}" for name in names if name in SUCCESSORS), "")
