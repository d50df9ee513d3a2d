"""Two functions that should be equal: what `attendax diff` says of them, and that what it prints makes them equal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pages
from attendax import cli
from attendax.conformance.against import describing_layers, diff, layers, report
from attendax.conformance.against.remote import Function
from attendax.exits import Refusal
from contract.more_numpy import channels_first, columns, decode, joined_heads, one_vector
from pairs_of_functions import PAIRS, softmax

QUICK = (
    "causal_end",
    "window_inclusive",
    "softcap_after_bias",
    "mask_of_keys",
    "layout_packed",
    "packed_by_head",
    "pre_norm",
)


def of(pair):
    """The report on a pair; both functions in this process."""
    a, b = (Function(fn, in_process=True) for fn in (pair.a, pair.b))
    if pair.is_layer:
        return report.compare_layers(describing_layers.describe(a, 2, "A"), describing_layers.describe(b, 2, "B"))
    return report.compare(report.described(a, "A"), report.described(b, "B"))


def says(text, words):
    """Whether the words come in it, in this order."""
    for word in words:
        _, at, text = text.partition(word)
        if not at:
            return False
    return True


@pytest.mark.smoke
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PAIRS]
)
def test_a_pair_of_a_public_thread(name):
    """Its difference is named first, and the adapter that is printed, run as it is, makes the two equal."""
    pair = PAIRS[name]
    found = of(pair)
    assert says(str(found.differences[0]), pair.says), str(found.differences[0])
    assert found.differences[0].shown
    assert found.explained, found.text()
    assert not found.equal
    names = {}
    exec(found.adapter, names)
    cases = ("with this adapter", "def adapted", "The cases: sizes B 1, 2, 6", "; T ", ", 300")
    assert pair.is_layer or says(found.text(), cases)
    if pair.is_layer:
        a = describing_layers.describe(Function(pair.a, in_process=True), 2, "A")
        given = {a.keyword: 2} if a.keyword else {}
        again = names["adapted"](layers.drawn(99), layers.inputs(99), **given)
        np.testing.assert_allclose(again, pair.a(layers.drawn(99), layers.inputs(99), **given), rtol=1e-4, atol=1e-4)


def test_each_pair_has_its_thread():
    """Of an axis of the table of conventions there is a pair or two: test_forms compares every value."""
    assert [name for name, pair in PAIRS.items() if "#" not in pair.source.split(":")[0]] == []


def plain(query, key, value, mask=None, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -1e9)
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def test_the_same_function_twice():
    found = diff(plain, plain)
    assert found.equal
    assert found.text().startswith("Exactly equal in ")


def moved(query, key, value, mask=None, is_causal=False):
    return plain(query, key, value, mask, is_causal).swapaxes(1, 2)


def flat(query, key, value, mask=None, is_causal=False):
    out = moved(query, key, value, mask, is_causal)
    return out.reshape(*out.shape[:2], -1)


def from_tokens(q, k, v):
    """Equal to ``flat`` of (B, N, T, D), given (B, T, N, D)."""
    return flat(*(x.swapaxes(1, 2) for x in (q, k, v)))


def packed(qkv):
    """(B, T, 3, N, D) to (B, T, N·D)."""
    return from_tokens(*np.moveaxis(qkv, 2, 0))


def megatron(q, k, v):
    """(T, B, N, D) to (T, B, N·D)."""
    return flat(*(np.moveaxis(x, 0, 2) for x in (q, k, v))).swapaxes(0, 1)


@pytest.mark.parametrize(
    ("a", "b", "gives"),
    [
        (plain, moved, "B takes (B, N, T, D) and gives (B, T, N, D)"),
        (flat, from_tokens, "B takes (B, T, N, D) and gives (B, T, N·D)"),
        (megatron, plain, "A takes (T, B, N, D) and gives (T, B, N·D)"),
        (packed, moved, "A takes qkv (B, T, 3, N, D) and gives (B, T, N·D)"),
    ],
)
def test_a_result_with_its_heads_elsewhere(a, b, gives):
    """As attention of transformers has them, which takes (B, N, T, D) and gives (B, T, N, D)."""
    found = diff(a, b)
    assert found.explained, found.text()
    named = {difference.name: difference for difference in found.differences}
    assert gives in str(named["layout"])
    assert set(named) <= {"layout", "arguments"}
    assert named["layout"].shown


@pytest.mark.parametrize(
    ("a", "b", "takes"),
    [
        (channels_first, joined_heads, "A takes qkv (B, N·3·D, T); B takes qkv (T, B, N·3·D)"),
        (joined_heads, channels_first, "A takes qkv (T, B, N·3·D); B takes qkv (B, N·3·D, T)"),
        (moved, columns, "A takes (B, N, T, D) and gives (B, T, N, D); B takes (D, T)"),
        (decode, from_tokens, "A takes (B, N, D); B takes (B, T, N, D) and gives (B, T, N·D)"),
        (from_tokens, decode, "A takes (B, T, N, D) and gives (B, T, N·D); B takes (B, N, D)"),
        (one_vector, moved, "A takes (D); B takes (B, N, T, D) and gives (B, T, N, D)"),
    ],
)
def test_arrays_that_are_joined_or_lack_an_axis_or_have_their_channels_first(a, b, takes):
    """Each is called by the other: arrays that are joined head by head, columns as tokens, one query."""
    found = diff(a, b)
    assert found.explained, found.text()
    assert any(takes in str(x) for x in found.differences)


def test_rounding_is_no_difference():
    def again(query, key, value, mask=None, is_causal=False):
        return plain(query * np.float32(1 + 1e-7), key, value, mask, is_causal)

    assert diff(plain, again).equal


def test_what_no_convention_is_is_said_so():
    """The smallest input, both numbers, and no adapter."""

    def other(query, key, value, mask=None, is_causal=False):
        return plain(query, key, value, mask, is_causal) * (1.01 if mask is not None and is_causal else 1)

    found = diff(plain, other)
    assert not found.explained
    assert says(
        found.text(), ("Not explained", "T=1, S=1, D=1", "mask [[True]]", "is_causal True", "A gives 1, B 1.01")
    )
    assert found.text().endswith("\nB's combination of mask and is_causal: no known formula gives its results.")


def test_two_of_an_unknown_formula():
    """Neither is attention; in two layouts they are the same."""

    def one(query, key, value):
        return query @ (key.swapaxes(-1, -2) @ value)

    def other(query, key, value):
        return np.einsum("btnd,bsnd,bsnv->btnv", query, key, value)

    found = diff(one, other)
    assert found.explained
    assert says(found.text(), ("layout", "(B, N, T, D)", "(B, T, N, D)", "Equal within", "not known"))


def test_an_unknown_formula_beside_a_known_one():
    def one(query, key, value):
        return query @ (key.swapaxes(-1, -2) @ value)

    found = diff(one, plain)
    assert not found.explained
    assert says(found.text(), ("Not explained", "formula of A is not known", "A gives", "B"))


def test_dropout_and_names_that_nobody_knows_are_told():
    def other(query, key, value, mask=None, dropout_p=0.0, temper=1):
        return plain(query, key, value, mask)

    found = diff(plain, other)
    assert "B's dropout_p (dropout is drawn at random; no adapter has it)" in found.notes
    assert "B's temper (not taken, or none of the options that are known)" in found.notes
    assert "is_causal, which A alone has" in found.notes


def test_several_differences_at_once():
    def other(q, k, v, attn_mask=None, causal=False, window=None):
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        scores = q @ np.tile(k, (1, q.shape[1] // k.shape[1], 1, 1)).swapaxes(-1, -2)
        T, S = scores.shape[-2:]
        if causal:
            scores = np.where(np.tri(T, S, S - T, dtype=bool), scores, -np.inf)
        if attn_mask is not None:
            scores = np.where(attn_mask, -np.inf, scores)
        weights = np.nan_to_num(softmax(scores))
        return (weights @ np.tile(v, (1, q.shape[1] // v.shape[1], 1, 1))).swapaxes(1, 2)

    found = diff(plain, other)
    assert found.explained, found.text()
    named = [difference.name for difference in found.differences]
    assert named == ["scale", "causal", "empty", "mask", "layout", "names"]


def test_the_way_back(monkeypatch):
    """What no adapter around B can do, one around A may."""

    def kept(query, key, value, mask=None):
        weights = softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
        return (weights if mask is None else weights * mask) @ value

    found = diff(kept, plain)
    assert found.explained, found.text()
    assert found.around == "A"


def test_functions_of_jax_and_torch():
    """Arrays of each framework; the adapter is in that of B."""
    pytest.importorskip("torch")
    import torch

    def other(q, k, v, causal=False):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -1e9)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

    found = diff(plain, other)
    assert found.explained, found.text()
    assert "import torch as xp" in found.adapter


def test_one_that_raises_on_everything():
    def broken(query, key, value):
        raise RuntimeError("no device")

    with pytest.raises(Refusal, match=r"B, \S*broken, raises on every call that was tried; .* RuntimeError: no device"):
        diff(plain, broken)


@pytest.mark.smoke
def test_a_layer_of_other_names():
    def layer(params, x):
        return x @ params["wq"]

    with pytest.raises(
        Refusal, match=r"A, \S*layer, raises: KeyError: 'wq'; it is called with params, a dict of query_kernel"
    ):
        diff(layer, layer, layers=True)


def normed(x, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def block(params, x, heads, active, eps=1e-12):
    """A layer with its norms after, as BERT has them; every size is that of its arrays."""
    p = params
    query, key, value = (
        (x @ p[f"{name}_kernel"] + p[f"{name}_bias"]).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
        for name in ("query", "key", "value")
    )
    out = plain(query, key, value).swapaxes(1, 2).reshape(x.shape)
    x = normed(x + out @ p["out_kernel"] + p["out_bias"], eps) * p["norm1_scale"] + p["norm1_bias"]
    y = active(x @ p["up_kernel"] + p["up_bias"]) @ p["down_kernel"] + p["down_bias"]
    return normed(x + y, eps) * p["norm2_scale"] + p["norm2_bias"]


def tanh_gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def relu(x):
    return np.maximum(x, 0)


def test_a_layer_by_formula_at_other_sizes():
    """The adapter reads its sizes from the arrays; no eps and no weights are named that do not differ."""

    def one(params, x, heads=2):
        return block(params, x, heads, tanh_gelu)

    def other(params, x, heads=2):
        return block(params, x, heads, relu)

    found = diff(one, other, layers=True)
    assert found.explained, found.text()
    assert [difference.name for difference in found.differences] == ["activation"]
    names = {}
    exec(found.adapter, names)
    sizes = layers.LayerSizes(2, 7, 32, 48)
    params, x = layers.drawn(7, sizes), layers.inputs(7, 1.0, sizes)
    np.testing.assert_allclose(names["adapted"](params, x, heads=8), one(params, x, heads=8), rtol=1e-4, atol=1e-4)


def test_an_eps_that_only_a_small_x_shows():
    def one(params, x, heads=2):
        return block(params, x, heads, relu)

    def other(params, x, heads=2):
        return block(params, x, heads, relu, eps=1e-8)

    found = diff(one, other, layers=True)
    assert [str(difference) for difference in found.differences] == ["eps of the norms: A 1e-12; B 1e-08"]
    assert found.explained


def test_layers_that_differ_at_other_sizes_alone():
    """What is equal at the sizes of the search is no proof: heads of 16 numbers each are no 2 heads."""

    def one(params, x):
        return block(params, x, 2, relu)

    def other(params, x):
        return block(params, x, x.shape[-1] // 16, relu)

    found = diff(one, other, layers=True)
    assert not found.explained
    assert says(found.text(), ("Not explained", "x (1, 9, 16), F=20"))


def test_layers_that_differ_in_long_texts_alone():
    """A window of 64 tokens; and where two are equal, the report names the sizes of the cases."""

    def one(params, x, reach=1000):
        query, key, value = (x @ params[f"{name}_kernel"] for name in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        seen = np.tri(x.shape[1]) - np.tri(x.shape[1], k=-reach)
        powers = np.exp(scores - scores.max(-1, keepdims=True)) * seen
        return powers / powers.sum(-1, keepdims=True) @ value @ params["out_kernel"]

    found = diff(one, lambda params, x: one(params, x, 64), layers=True, heads=1)
    assert says(found.text(), ("Not explained", "x (1, 301, 16)"))
    told = diff(one, one, layers=True, heads=1).text()
    assert says(told, ("Exactly equal", "T 4, 5, 9, 301", "x of about 1e-06", "float32"))


@pytest.mark.smoke
def test_sizes_at_which_a_layer_raises_are_told():
    def one(params, x):
        return block(params, x.reshape(-1, 5, 32), 2, relu)

    found = diff(one, lambda params, x: block(params, x, 2, relu), layers=True)
    assert found.equal
    assert found.checked.cases == 4
    assert "Not compared: some of the sizes (B, T, M, F) (2, 5, 32, 12), (1, 9, 16, 20)" in found.text()


@pytest.mark.smoke
def test_gelu_is_told_apart_whatever_the_eps():
    """As in Gemma: RMS norms times (1 + scale), with eps 1e-6 and 1e-5."""

    def gated(params, x, eps):
        p = params
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (1 + p["norm2_scale"])
        return x + (tanh_gelu(y @ p["gate_kernel"]) * (y @ p["up_kernel"])) @ p["down_kernel"]

    found = diff(lambda params, x: gated(params, x, 1e-6), lambda params, x: gated(params, x, 1e-5), layers=True)
    assert [str(difference) for difference in found.differences] == ["eps of the norms: A 1e-06; B 1e-05"]
    assert found.explained


FILE = """
import numpy as np


def one(query, key, value):
    scores = np.exp(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
    return scores / scores.sum(-1, keepdims=True) @ value


def other(q, k, v):
    scores = np.exp(q @ k.swapaxes(-1, -2))
    return scores / scores.sum(-1, keepdims=True) @ v
"""


def run(monkeypatch, tmp_path, capsys, *argv):
    (tmp_path / "two.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    status = cli.main(["diff", *argv])
    return status, *capsys.readouterr()


def test_the_command(monkeypatch, tmp_path, capsys):
    status, out, err = run(monkeypatch, tmp_path, capsys, "two:one", "two:other")
    assert status == 1
    assert says(
        out,
        (
            "1. scale if none is given: A multiplies by 1/√D; B multiplies by 1",
            "T=1, S=2, D=2",
            "Equal within",
            "def adapted",
        ),
    )
    assert err == ""
    status, out, err = run(monkeypatch, tmp_path, capsys, "two:one", "two:one")
    assert (status, out.split(" in ")[0]) == (0, "Exactly equal")


def test_the_command_refuses_in_a_line(monkeypatch, tmp_path, capsys):
    for argv, said in (
        (("two:one", "two:none"), "attendax diff: two:none: two has no none; did you mean one?"),
        (("two:one", "exec:./none {case}"), "there is no program './none'"),
        (("nothing:one", "two:one"), "No module named 'nothing'"),
    ):
        status, out, err = run(monkeypatch, tmp_path, capsys, *argv)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert said in err


def test_a_folder_of_results_is_refused():
    with pytest.raises(Refusal, match="`attendax judge mine` judges them"):
        diff("folder:mine", plain)


@pytest.mark.slow
def test_a_program_beside_a_function(monkeypatch, tmp_path, capsys):
    """A process for each call, so only what the two are is asked."""
    (tmp_path / "prog.py").write_text(PROGRAM)
    command = f"exec:{sys.executable} {tmp_path / 'prog.py'} {{case}}"
    found = diff(command, plain)
    assert found.explained, found.text()
    assert found.around == "B"
    assert [difference.name for difference in found.differences] == ["empty"]


PROGRAM = """
import json
import sys

import numpy as np

with open(f"{sys.argv[1]}/case.json") as file:
    case = json.load(file)
arrays = {name: np.load(f"{sys.argv[1]}/{x['file']}") for name, x in case["arrays"].items()}
if case["asks_for"] or case["dtype"] != "float32" or case["sizes"]["N"] != case["sizes"]["G"]:
    with open(f"{sys.argv[1]}/error.json", "w") as file:
        json.dump({"kind": "not offered", "said": ["plain heads in float32 only"]}, file)
    sys.exit()
scores = arrays["query"] @ arrays["key"].swapaxes(-1, -2) * np.float32(case["scale"])
if case["allowed"]:
    scores = np.where(np.load(f"{sys.argv[1]}/{case['allowed']['file']}"), scores, -np.inf)
weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e9))
np.save(f"{sys.argv[1]}/out.npy", weights / np.maximum(weights.sum(-1, keepdims=True), 1e-9) @ arrays["value"])
"""

PAGE = "\n".join((pages.ROOT / "docs" / name).read_text("utf-8") for name in ("against.md", "layers.md"))
SHOWN = re.findall(r"```text\n\$ attendax (.*?)\n(.*?)\n```", PAGE, re.DOTALL)


def test_every_weight_of_a_layer_is_named():
    names = [name for name in layers.shapes() if not name.endswith("_bias")]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_commands_are_shown():
    assert len(SHOWN) >= 3


def test_modules_of_the_current_folder_are_found(tmp_path):
    """As the console script is started, without the current folder on the path."""
    shown = {file[1]: block for block in pages.BLOCK.findall(PAGE) if (file := pages.FILE.match(block))}
    (tmp_path / "ported.py").write_text(shown["ported.py"])
    start = "import sys; from attendax.cli import main; sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-P", "-c", start, "diff", "ported:attention", "ported:attention"]
    environment = os.environ | {"PYTHONPATH": str(pages.ROOT / "src")}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Exactly equal in ")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(command, printed, tmp_path):
    for block in pages.BLOCK.findall(PAGE):
        if file := pages.FILE.match(block):
            (tmp_path / file[1]).write_text(block)
    environment = os.environ | {"COLUMNS": "120", "PYTHONPATH": str(pages.ROOT / "src")}
    run = [sys.executable, "-m", "attendax", *command.split()]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if printed.startswith("Equal") else 1), done.stderr
    assert [line.rstrip() for line in done.stdout.strip().splitlines()] == printed.splitlines()


def test_the_command_finds_modules_of_its_folder(tmp_path):
    """The command that is installed, not ``python -m``."""
    source = "import numpy as np\n\n\ndef {}(query, key, value):\n    s = np.einsum('bntd,bnsd->bnts', query, key)\n"
    source += "    p = np.exp(s - s.max(-1, keepdims=True))\n    return p / p.sum(-1, keepdims=True) @ value\n\n\n"
    (tmp_path / "ported.py").write_text(source.format("a") + source.format("b"), "utf-8")
    command = Path(sys.executable).parent / "attendax"
    found = subprocess.run([command, "diff", "ported:a", "ported:b"], cwd=tmp_path, capture_output=True, text=True)
    assert "ModuleNotFoundError" not in found.stdout + found.stderr
    assert found.returncode == 0, found.stdout + found.stderr
