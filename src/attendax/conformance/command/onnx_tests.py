"""``attendax export-onnx``: cases as tests of backends of ONNX, each a model of one ``Attention`` and the right result.

A test is a folder as the tests of ONNX itself: ``model.onnx``, ``test_data_set_0/input_0.pb`` ..., ``output_0.pb``.
How far off a result may be, by the kit's own measure, is a property of the model: ``attendax.atol``.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendax.exits import FAILED
from attendax.extras import require

from ..cases import choose
from ..cases.case import FORWARD, Case, Inputs, allowed_pairs
from ..cases.how import How
from ..conventions import right
from ..judge.tolerances import tolerances
from .arguments import add, refusing
from .output import new_folder

SAID = {  # what the operator can say
    "mask", "bias", "is_causal", "scale", "softcap", "window", "key_lengths", "query_segment_ids", "key_segment_ids",
    "offset",
}  # fmt: skip
IR = 11  # version of the file format that opset 23 came with
NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ROOM = "attendax.atol"  # among the properties of a model: how far off its result may be


class Node(NamedTuple):
    """A node: its inputs by name, its attributes, and the first operator set that has them."""

    arrays: dict[str, np.ndarray]
    attributes: dict[str, Any]
    opset: int


def cases(seed: int = 0, only: Iterable[str] = ()) -> list[tuple[Case, Inputs]]:
    """Cases that the operator can say, with their inputs: results without an lse, of arrays (B, N, T, D)."""
    asked = (case for case in choose(only, FORWARD, drawn=()) if (case.judge, case.direction) == ("value", FORWARD))
    made = ((case, case.inputs(seed, case.dtype or "float32")) for case in asked)
    return [(case, inputs) for case, inputs in made if can_be_said(inputs)]


def can_be_said(inputs: Inputs) -> bool:
    """Tell whether the operator has a word for everything that a case asks for."""
    scale = inputs.options.get("scale")
    return (
        inputs.arrays["query"].ndim == 4
        and set(inputs.options) <= SAID
        and "sinks" not in inputs.arrays
        and (scale is None or scale > 0)  # Q and K are each multiplied by its root
    )


def node_of(inputs: Inputs) -> Node:
    """The node of a case: attributes where they say it, one ``attn_mask`` for all else."""
    arrays = {name: inputs.arrays[part] for name, part in zip(NAMES, ("query", "key", "value"), strict=False)}
    given, attributes, opset = dict(inputs.options), {}, 23
    for name in ("scale", "softcap"):
        if given.get(name) is not None:
            attributes[name] = float(given.pop(name))
    hides = {name for name, x in given.items() if x is not None}
    bias = inputs.arrays.get("bias")
    if "offset" not in hides and "is_causal" in hides and "key_lengths" not in hides:
        attributes["is_causal"] = int(given.pop("is_causal"))
    if "window" in hides and not hides & {"key_lengths", "offset"}:
        sides = (-1 if side is None else side for side in given.pop("window"))
        attributes |= dict(zip(("left_window_size", "right_window_size"), sides, strict=True))
        opset = 25
    if hides == {"key_lengths"}:
        arrays["nonpad_kv_seqlen"], opset = np.asarray(given.pop("key_lengths"), np.int64), 24
    mask = _attn_mask(Inputs(inputs.arrays, given, {}), bias)
    return Node(arrays | ({} if mask is None else {"attn_mask": mask}), attributes, opset)


def _attn_mask(inputs: Inputs, bias: np.ndarray | None) -> np.ndarray | None:
    """Join all that is left to hide and to add to one array: boolean where nothing is added."""
    keys, hides = inputs.arrays["key"].shape[-2], any(x is not None for x in inputs.options.values())
    allowed = allowed_pairs(inputs) if hides else np.array(True)
    if bias is None:
        return _whole(allowed, keys) if hides else None
    return np.where(allowed, _whole(bias, keys), np.array(-np.inf, bias.dtype)).astype(bias.dtype)


def _whole(x: np.ndarray, keys: int) -> np.ndarray:
    """Over all keys, and of rank 2 or more: a shorter last axis hides the keys beyond it."""
    x = x[None] if x.ndim < 2 else x
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:-1], keys)))


def export(folder: str | os.PathLike[str], *, seed: int = 0, only: Iterable[str] = ()) -> list[str]:
    """Write a folder for each case that the operator can say.

    Args:
        folder: where; it may not be there, or is empty. It is written beside and moved.
        seed: of the numbers.
        only: laws, and parts of the names of cases; all unless given.

    Returns:
        The names of the tests.

    Raises:
        ModuleNotFoundError: onnx is not installed.
        FileExistsError: there is something in the folder.
        ValueError: no case is left.
    """
    require("onnx", "export_onnx", extra="onnx")
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"export_onnx: {folder} is there and not empty: name another, or remove it")
    chosen = cases(seed, only)
    if not chosen:
        raise ValueError(f"export_onnx: only got {list(only)}, which names no case that the operator can say")
    with new_folder(place) as part:
        for case, inputs in chosen:
            _write(part / _name(case), case, inputs, seed)
    return [_name(case) for case, _ in chosen]


def _name(case: Case) -> str:
    return "test_attention_" + re.sub(r"\W+", "_", case.name).strip("_").lower()


def _write(folder: Path, case: Case, inputs: Inputs, seed: int) -> None:
    from onnx import checker, helper, numpy_helper

    node, leaves = node_of(inputs), right.forward(inputs)
    room = tolerances(case, How(seed=seed), leaves, in_jax=False, effort=1)["out"].allowed
    out = np.ascontiguousarray(leaves["out"].astype(inputs.arrays["query"].dtype))
    given = {name: np.ascontiguousarray(node.arrays[name]) for name in NAMES if name in node.arrays}
    names = [name if name in given else "" for name in NAMES[: 1 + NAMES.index([*given][-1])]]

    def info(name: str, x: np.ndarray) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)

    graph = helper.make_graph(
        [helper.make_node("Attention", names, ["Y"], **node.attributes)], "attention",
        [info(name, x) for name, x in given.items()], [info("Y", out)], doc_string=f"{case.law}: {case.about}",
    )  # fmt: skip
    imports = [helper.make_opsetid("", node.opset)]
    model = helper.make_model(graph, producer_name="attendax", ir_version=IR, opset_imports=imports)
    helper.set_model_props(model, {ROOM: repr(float(room * np.abs(np.nan_to_num(leaves["out"])).max(initial=0.0)))})
    checker.check_model(model, full_check=True)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    files = {f"input_{number}": (name, x) for number, (name, x) in enumerate(given.items())} | {"output_0": ("Y", out)}
    for file, (name, x) in files.items():
        (data / f"{file}.pb").write_bytes(numpy_helper.from_array(x, name).SerializeToString())


def run_reference(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Run every test of a folder by onnx's reference evaluator: why it fails, by name; empty where it passes."""
    from onnx.reference import ReferenceEvaluator

    return _run(folder, ReferenceEvaluator)


def run_onnxruntime(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Run them by onnxruntime, as ``run_reference``."""
    onnxruntime = require("onnxruntime", "export_onnx", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    given = {"sess_options": options, "providers": ["CPUExecutionProvider"]}
    return _run(folder, lambda model: onnxruntime.InferenceSession(model.SerializeToString(), **given))


def _run(folder: str | os.PathLike[str], session: Any) -> dict[str, str]:
    import onnx
    from onnx import numpy_helper

    found = {}
    for place in sorted(Path(folder).iterdir()):
        model, data = onnx.load(str(place / "model.onnx")), place / "test_data_set_0"
        tensors = [onnx.load_tensor(str(file)) for file in (*sorted(data.glob("input_*.pb")), data / "output_0.pb")]
        given = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
        expected = given.pop("Y")
        try:
            with np.errstate(all="ignore"):
                got = session(model).run(None, given)[0]
        except Exception as error:
            found[place.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        room = next(float(x.value) for x in model.metadata_props if x.key == ROOM)
        found[place.name] = _apart(np.asarray(got), expected, room)
    return found


def _apart(got: np.ndarray, expected: np.ndarray, room: float) -> str:
    """Name the difference of two results; empty where there is none."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"gives {got.dtype} of shape {got.shape}, expected {expected.dtype} of {expected.shape}"
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(got[np.isfinite(expected)]).all():
        return "gives numbers that are not finite"
    worst = float(np.abs(got - expected).max(initial=0.0))
    return f"off by {worst:.2g}, where {room:.2g} is allowed" if worst > room else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="where a folder for each test goes; new, or empty")
    add(parser, "what is written", ("only", "seed"), seed="of the numbers; 0 unless given")
    parser.set_defaults(seed=0)
    about = "run them, too, by onnx's reference evaluator and by onnxruntime"
    parser.add_argument("--run", dest="runs", action="store_true", help=about)


@refusing
def run(args: argparse.Namespace) -> int:
    """Write, and run where asked for; gives the exit status: 0 well, 1 a test fails."""
    names = export(args.folder, seed=args.seed, only=args.only or ())
    print(f"{len(names)} tests in {args.folder}")
    if not args.runs:
        return 0
    found = {"onnx.reference": run_reference(args.folder), "onnxruntime": run_onnxruntime(args.folder)}
    for name, results in found.items():
        print(f"{name}: {Counter(results.values())['']} of {len(results)} pass")
        for test, why in results.items():
            print(f"  {test}: {why}\n" if why else "", end="")
    return FAILED if any(why for results in found.values() for why in results.values()) else 0
