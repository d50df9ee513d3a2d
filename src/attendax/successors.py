"""Commands and options that left in this version: for one release each names its successor."""

from collections.abc import Sequence

XARGS = "xargs -P runs several checks at a time (docs/conformance.md)"
CLONE = "in a clone, python -m benchmarks"
EXEC = "check --exec runs a program around the C function (docs/without-python.md)"
SUCCESSORS = {  # a command, or a command with an option
    "check --lib": EXEC,
    "check --signature": EXEC,
    **{f"check --{name}": XARGS for name in ("candidates", "function", "workers")},
    "check --junit": "pytest --junitxml writes JUnit; check --json has all cases",
    "check --html": "check --markdown writes the report",
    **{f"{name} --safetensors": "each array is a file .npy" for name in ("inputs", "vectors")},
    "check --all-installed": f"{CLONE} matrix judges all libraries",
    "check --all-models": f"{CLONE} models judges all models",
    "check --output": "check --json and --markdown write a report",
    "bench": f"{CLONE} bench times attention",
    "search": "docs/examples/nearest_lines.py does it by attendax embed --output and NumPy",
    "export-onnx": "check --onnx judges a model; no command writes tests of ONNX backends",
}


def successor(argv: Sequence[str]) -> str:
    """The line on what replaces a command or an option of these arguments; empty if none of them left.

    Example:
        >>> successor(["check", "--lib=attention.so"])
        'check --lib left: check --exec runs a program around the C function (docs/without-python.md)'
        >>> successor(["check", "mine:attention"])
        ''
    """
    command = argv[0] if argv else ""
    names = [command, *(f"{command} {word.partition('=')[0]}" for word in argv[1:])]
    return next((f"{name} left: {SUCCESSORS[name]}" for name in names if name in SUCCESSORS), "")
