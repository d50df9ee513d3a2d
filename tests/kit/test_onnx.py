"""ONNX: models that are judged by onnxruntime."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from attendax import extras
from attendax.cli import main
from attendax.conformance import CASES, check
from places import ROOT

PAGE = ROOT / "docs/onnx.md"


@pytest.mark.smoke
def test_without_onnx_there_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(extras.importlib, "import_module", _missing(extras.importlib.import_module))
    assert main(["check", "--onnx", "a.onnx", "--in-process"]) == 2
    said = capsys.readouterr().err
    assert "the package onnx is not installed" in said
    assert ".[onnx]" in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


def _missing(real):
    def missing(name, *args):
        if name.partition(".")[0] == "onnx":
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
        return real(name, *args)

    return missing


class TestCheck:
    """Models in files: the standard node with attributes, and graphs of smaller nodes."""

    @pytest.fixture(autouse=True)
    def installed(self, tmp_path, monkeypatch):
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        monkeypatch.chdir(tmp_path)

    def test_attributes_and_inputs_say_what_is_offered(self):
        model("masked.onnx", mask="bool")
        model("added.onnx", mask="float", names=("a", "b", "c", "d"))
        words = ["plain", "causal, fewer queries", "mask (B, 1, T, S)", "bias (B, N, T, S)"]
        found = {name: verdicts(f"onnx:{name}.onnx", words) for name in ("masked", "added")}
        assert found["masked"] == {"ok": 3, "not offered": 1}
        assert found["added"] == {"ok": 4}

    @pytest.mark.slow
    def test_the_page_shows_what_the_command_prints(self):
        model("masked.onnx", mask="bool")
        shows = r"```text\n\$ attendax (.*?)\n(.*?)\n```"
        command, shown = re.search(shows, PAGE.read_text("utf-8"), re.DOTALL).groups()
        run = [sys.executable, "-m", "attendax", *command.split()]
        done = subprocess.run(run, env=os.environ | {"COLUMNS": "120"}, capture_output=True, text=True, check=True)
        assert done.stdout.split() == shown.split()  # the page breaks long lines

    def test_a_model_that_is_causal_is_judged_where_that_is_asked(self):
        model("causal.onnx", is_causal=1)
        report = check("onnx:causal.onnx", only=["plain", "causal, fewer queries"], level="forward", seed=1, budget=0)
        judged = [outcome.case.name for outcome in report.cases if outcome.verdict.value == "ok"]
        assert judged
        assert all("causal" in name for name in judged)
        assert report.ok

    def test_with_lengths_the_last_query_is_beside_the_last_key(self):
        """As the operator has it: from there a causal model counts, so that ``key lengths, causal`` is not offered."""
        model("lengths.onnx", mask="bool", lengths=True, is_causal=1)
        report = check("onnx:lengths.onnx", only=["causal"], level="forward", seed=1, budget=0)
        ends = {outcome.case.name: outcome.verdict.value for outcome in report.cases}
        assert set(ends.values()) <= {"ok", "not offered"}
        assert ends["causal, fewer queries"] == ends["causal, one query"] == "ok"
        assert ends["key lengths, causal"] == "not offered"

    def test_heads_in_the_last_axis_and_sizes_that_are_fixed(self):
        model("packed.onnx", rank=3, q_num_heads=3, kv_num_heads=3)
        model("fixed.onnx", queries=5)
        for name in ("packed", "fixed"):
            assert verdicts(f"onnx:{name}.onnx", ["plain"]) == {"ok": 1}
        assert "not offered" in verdicts("onnx:fixed.onnx", ["one query"])

    @pytest.mark.parametrize(
        ("mistake", "right"),
        [({}, True), ({"axis": 2}, False), ({"scale": 1.0}, False), ({"inverted": True}, False)],
        ids=["right", "softmax over queries", "not scaled", "mask inverted"],
    )
    def test_graphs_of_other_nodes(self, mistake, right):
        graph("graph.onnx", **mistake)
        found = verdicts("onnx:graph.onnx", ["plain", "mask (B, 1, T, S)"])
        assert found == {"ok": 2} if right else found["wrong"] >= 1

    def test_it_runs_in_a_process_of_its_own(self):
        model("masked.onnx", mask="bool")
        command = [sys.executable, "-m", "attendax", "check", "--onnx", "masked.onnx", "--only", "plain", "--json", "-"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        told = json.loads(shown.stdout)
        assert told["process"] == ""
        assert told["cases"][0]["verdict"] == "ok"

    @pytest.mark.parametrize(
        ("write", "words"),
        [
            (lambda: None, "the model a.onnx cannot be read"),
            (lambda: Path("a.onnx").write_bytes(b"no model"), "the model a.onnx cannot be read"),
            (lambda: model("a.onnx", names=("x", "y", "z", "w"), mask="bool", other=True), "has inputs"),
        ],
        ids=["no file", "no model", "other inputs"],
    )
    def test_what_cannot_be_judged_is_refused(self, write, words, capsys):
        write()
        assert main(["check", "--onnx", "a.onnx", "--in-process"]) == 2
        assert words in capsys.readouterr().err


def verdicts(path, only):
    """How the cases of these very names end."""
    assert set(only) <= {case.name for case in CASES}
    report = check(path, only=only, level="forward", seed=1, budget=0)
    return Counter(outcome.verdict.value for outcome in report.cases if outcome.case.name in only)


def model(
    file, mask="", rank=4, names=("Q", "K", "V", "attn_mask"), queries="T", other=False, lengths=False, **attributes
):
    """A model of one standard node, with dynamic axes."""
    import onnx
    from onnx import TensorProto, helper

    shapes = {4: (["B", "N", queries, "D"], ["B", "G", "S", "D"]), 3: (["B", "T", "ND"], ["B", "S", "GD"])}[rank]
    given = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shapes[k > 0]) for k, x in enumerate(names[:3])]
    if mask:
        kind = TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT
        given.append(helper.make_tensor_value_info(names[3], kind, ["b", "n", "t", "s"]))
    of_node = [x.name for x in given]
    if lengths:
        given.append(helper.make_tensor_value_info("nonpad_kv_seqlen", TensorProto.INT64, ["B"]))
        of_node += [""] * (6 - len(of_node)) + ["nonpad_kv_seqlen"]
    nodes = [helper.make_node("Attention", of_node, ["Y"], **attributes)]
    results = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * rank)]
    if other:
        given.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["n"]))
        nodes.append(helper.make_node("Identity", ["more"], ["unused"]))
        results.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, ["n"]))
    made = helper.make_graph(nodes, "g", given, results)
    opset = 25 if lengths else 23
    onnx.save(helper.make_model(made, ir_version=11, opset_imports=[helper.make_opsetid("", opset)]), file)


def graph(file, axis=3, scale=0.5, inverted=False):
    """Attention at D = 4 of smaller nodes; a mask, True = may look."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def info(name, shape, kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, shape)

    given = [
        info("query", ["B", "N", "T", "D"]),
        info("key", ["B", "N", "S", "D"]),
        info("value", ["B", "N", "S", "V"]),
    ]
    given.append(info("mask", ["b", "n", "t", "s"], TensorProto.BOOL))
    chosen = ["mask", "low", "scaled"] if inverted else ["mask", "scaled", "low"]
    nodes = [
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Where", chosen, ["seen"]),
        helper.make_node("Softmax", ["seen"], ["weights"], axis=axis),
        helper.make_node("MatMul", ["weights", "value"], ["out"]),
    ]
    numbers = {"scale": scale, "low": -1e30}
    constants = [numpy_helper.from_array(np.array(x, np.float32), name) for name, x in numbers.items()]
    made = helper.make_graph(nodes, "g", given, [info("out", ["B", "N", "T", "V"])], initializer=constants)
    onnx.save(helper.make_model(made, ir_version=11, opset_imports=[helper.make_opsetid("", 23)]), file)
