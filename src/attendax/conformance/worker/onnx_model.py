"""An ONNX model as a candidate: it is run by onnxruntime in this process.

Its inputs are matched by the node that reads them, by name or by order.
"""

from typing import Any

import numpy as np

from attendax.extras import require

from ..cases.case import ARRAYS, Leaves
from ..protocol import HIDING_OPTIONS, Told

OPSETS = (23, 24, 25)  # those that changed the standard operator
NODE = ("query", "key", "value", "mask", "past_key", "past_value", "key_lengths")  # the inputs of Attention, in order
INPUT_NAMES = {
    "query": ("query", "q"), "key": ("key", "k"), "value": ("value", "v"),
    "mask": ("attn_mask", "mask", "attention_mask", "bias", "attn_bias"),
    "key_lengths": ("nonpad_kv_seqlen", "key_lengths", "lengths"),
}  # fmt: skip
TENSOR_TYPES = {"float32": "tensor(float)", "float64": "tensor(double)", "float16": "tensor(float16)"}
PLAIN_ATTRIBUTES: dict[str, Any] = {"is_causal": 0, "softcap": 0.0, "left_window_size": -1, "right_window_size": -1}


class OnnxModel:
    """Answers what is asked by running the model, in this process."""

    def __init__(self, file: str) -> None:
        """Load it."""
        onnx = require("onnx", "check --onnx", extra="onnx")
        onnxruntime = require("onnxruntime", "check --onnx", extra="onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            model = onnx.load(file)
            self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            why = " ".join(str(error).split())[:300]
            raise ValueError(f"check: the model {file} cannot be read: {why}") from error
        self.inputs = {x.name: x for x in self.session.get_inputs()}
        self.outputs = [x.name for x in self.session.get_outputs()]
        node = _node(onnx, model, file)
        given = [] if node is None else node.attribute
        self.attributes = PLAIN_ATTRIBUTES | {x.name: onnx.helper.get_attribute_value(x) for x in given}
        self.roles = _roles(node, list(self.inputs), file)
        masked, given = "mask" in self.roles, self.attributes
        asked = {
            "bias": masked and "bool" not in self.inputs[self.roles["mask"]].type, "is_causal": given["is_causal"],
            "window": max(given["left_window_size"], given["right_window_size"]) >= 0, "softcap": given["softcap"],
            "key_lengths": "key_lengths" in self.roles, "scale": "scale" in given, "return_lse": "lse" in self.outputs,
        }  # fmt: skip
        # the keywords that its inputs and the attributes of its node have room for
        self.accepted = [*HIDING_OPTIONS] * masked + [name for name, there in asked.items() if there]

    def __call__(self, told: Told) -> Leaves:
        """The results of one case."""
        if told["direction"] != "forward":
            raise NotImplementedError("an ONNX model has no gradient")
        if set(told["asks_for"]) - {"lse", "softcap", "bias"}:
            raise NotImplementedError(f"the model has no {told['asks_for'][0]}")
        scale, softcap = self.attributes.get("scale", told["sizes"]["D"] ** -0.5), self.attributes["softcap"]
        if not np.isclose(told["scale"], scale, rtol=1e-6):
            raise NotImplementedError(f"the model's scale is {scale:g}")
        if not np.isclose(told["options"].get("softcap") or 0.0, softcap):
            raise NotImplementedError(f"the model's softcap is {softcap:g}")
        kind = self.inputs[self.roles["query"]].type
        if TENSOR_TYPES.get(told["dtype"]) != kind:
            raise NotImplementedError(f"its query is {kind}")
        given = {self.roles[name]: self._packed(name, told["arrays"][name]) for name in ARRAYS[:3]}
        given |= self._masks(told)
        for name, x in given.items():
            known = self.inputs[name].shape
            fixed = any(isinstance(size, int) and size != n for size, n in zip(known, x.shape, strict=False))
            if fixed or len(known) != x.ndim:
                raise NotImplementedError(f"the model takes {name} of shape {known}")
        names = [x for x in self.outputs if x == "lse" and "lse" in told["results"]]
        found = self.session.run([self.outputs[0], *names], given)
        out, heads = found[0], told["results"]["out"]["shape"][1]
        out = out.reshape(*out.shape[:2], heads, -1).swapaxes(1, 2) if out.ndim == 3 else out
        return {"out": out} | dict(zip(names, found[1:], strict=True))

    def _masks(self, told: Told) -> dict[str, np.ndarray]:
        """The inputs that hide keys; what the attributes hide must also be hidden in the case."""
        B, N, T, S = (told["sizes"][axis] for axis in "BNTS")
        wanted = np.ones((1, 1, T, S), bool) if told["allowed"] is None else told["allowed"]
        i, j, given, found = np.arange(T)[:, None], np.arange(S), self.attributes, {}
        inside = np.ones((1, 1, T, S), bool)
        if "key_lengths" in self.roles:
            lengths = np.asarray(told["options"].get("key_lengths", np.full(B, S)), np.int64)
            found[self.roles["key_lengths"]] = lengths
            inside = inside & (j < lengths[:, None, None, None])
            i = i + (lengths - T)[:, None, None, None]  # the last query is beside the last key, as ONNX defines it
        left, right = given["left_window_size"], 0 if given["is_causal"] else given["right_window_size"]
        inside = inside & (j >= i - left if left >= 0 else True) & (j <= i + right if right >= 0 else True)
        if (wanted & ~inside).any():
            raise NotImplementedError("the model hides more: is_causal or a window is among its attributes")
        bias = told["arrays"].get("bias")
        if "mask" in self.roles:
            found[self.roles["mask"]] = self._mask(wanted, bias, (B, N, T, S), told["dtype"])
        elif bias is not None or not np.array_equal(wanted & inside, np.broadcast_to(inside, (wanted & inside).shape)):
            raise NotImplementedError("the model has no input attn_mask")
        return found

    def _mask(self, wanted: np.ndarray, bias: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        known = self.inputs[self.roles["mask"]]
        if "bool" in known.type:
            if bias is not None:
                raise NotImplementedError("its attn_mask is boolean: there is no bias")
            whole = np.broadcast_to(wanted, shape)
        else:
            added = np.zeros((), dtype) if bias is None else bias
            whole = np.where(np.broadcast_to(wanted, shape), added, -np.inf).astype(dtype)
        while whole.ndim > len(known.shape):
            if (whole != whole[:1]).any():
                raise NotImplementedError(f"the model takes attn_mask of shape {known.shape}")
            whole = whole[0]
        for axis, size in enumerate(known.shape):
            first = whole.take([0], axis)
            if size == 1 and not (whole != first).any():
                whole = first
        return np.ascontiguousarray(whole)

    def _packed(self, name: str, x: np.ndarray) -> np.ndarray:
        """(B, N, T, D) as it is, or (B, T, N·D) where the model takes rank 3."""
        if len(self.inputs[self.roles[name]].shape) != 3:
            return x
        attribute = "q_num_heads" if name == "query" else "kv_num_heads"
        if self.attributes.get(attribute) != x.shape[1]:
            raise NotImplementedError(f"the model's {attribute} is {self.attributes.get(attribute)}")
        return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


def _node(onnx: Any, model: Any, file: str) -> Any:
    """The one standard Attention of a model; None where it has none, or several."""
    found = [node for node in model.graph.node if node.op_type == "Attention" and node.domain in ("", "ai.onnx")]
    if len(found) != 1:
        return None
    opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    since = onnx.defs.get_schema("Attention", opset, "").since_version
    if since not in OPSETS:
        known = ", ".join(map(str, OPSETS))
        raise ValueError(f"check: the model {file} has Attention of operator set {since}, this version knows {known}")
    return found[0]


def _roles(node: Any, names: list[str], file: str) -> dict[str, str]:
    """Assign inputs to roles: by the node's own inputs, else by names, else by the order of the first three."""
    found = {} if node is None else {role: x for role, x in zip(NODE, node.input, strict=False) if x in names}
    if not set(ARRAYS[:3]) <= set(found):
        lower = {x.lower(): x for x in names}
        known = {role: next((lower[x] for x in given if x in lower), None) for role, given in INPUT_NAMES.items()}
        found = {role: x for role, x in known.items() if x is not None}
    if not set(ARRAYS[:3]) <= set(found):
        found = dict(zip(("query", "key", "value", "mask"), names, strict=False))
    if not set(ARRAYS[:3]) <= set(found) or set(names) - set(found.values()):
        shown = ", ".join(names) or "none"
        raise ValueError(f"check: the model {file} has inputs {shown}, expected query, key, value and one attn_mask")
    return found
