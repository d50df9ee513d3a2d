"""``attendax demo`` prints the seed's figures to the digit; the frame that every command shares."""

import subprocess
import sys

import numpy as np
import pytest

from attendax.cli import main

DEMO = """\
Batch size: 2
Sequence length: 4
Key/Query dimension (d_k): 8
Value dimension (d_v): 8
Q shape: (2, 4, 8)
K shape: (2, 4, 8)
V shape: (2, 4, 8)

------------------------------------------------------------
Example 1: Attention without mask

Output shape: (2, 4, 8)
Attention weights shape: (2, 4, 4)

Attention weights (first batch):
[[0.25239951 0.24751685 0.25106345 0.24902019]
 [0.24893051 0.25202596 0.24813962 0.25090392]
 [0.24710991 0.25421605 0.24841189 0.25026215]
 [0.25241656 0.24979312 0.24903318 0.24875714]]
Row sums: [1. 1. 1. 1.]

Output (first batch, first sequence position):
[-0.02728092  0.00473303 -0.04275996 -0.07967607  0.03838312  0.06356303
 -0.08637104  0.06873783]

------------------------------------------------------------
Example 2: Attention with causal mask
(Each position can only attend to itself and previous positions)

Causal mask (first batch):
[[1 0 0 0]
 [1 1 0 0]
 [1 1 1 0]
 [1 1 1 1]]

Attention weights with causal mask (first batch):
[[1.         0.         0.         0.        ]
 [0.49691046 0.50308954 0.         0.        ]
 [0.32959509 0.33907325 0.33133167 0.        ]
 [0.25241656 0.24979312 0.24903318 0.24875714]]

Note: Upper triangle is 0 (masked positions)
"""
ATTENTION = """
------------------------------------------------------------
Example 3: attention, with a mask as a value
(B texts, N heads, T queries and S keys of width D, values of width V)

mask = causal() & padding([4, 2])
out, lse = attention(query, key, value, mask=mask, return_lse=True)

query (B, N, T, D) = (2, 1, 4, 8)
key   (B, N, S, D) = (2, 1, 4, 8)
value (B, N, S, V) = (2, 1, 4, 8)
out   (B, N, T, V) = (2, 1, 4, 8)
lse   (B, N, T)    = (2, 1, 4)

mask, text 2 of 2 tokens: keys 3 and 4 are padding
[[1 0 0 0]
 [1 1 0 0]
 [1 1 0 0]
 [1 1 0 0]]

out, text 2, query 4:
[-0.0609  0.0015  0.0132 -0.0818  0.0442  0.0377  0.0549  0.1361]
lse, text 2:
[0.0030 0.6971 0.6876 0.7009]

The specification in NumPy agrees: spec.attention, to 1e-06.
"""


class TestDemo:
    def test_prints_the_seed_s_figures(self, capsys):
        assert main(["demo"]) == 0
        assert capsys.readouterr().out == DEMO + ATTENTION

    def test_depends_on_no_setting_and_changes_none(self, capsys):
        def settings():
            return np.get_printoptions(), np.random.get_state()[1].tolist()  # noqa: NPY002 the global one is meant

        with np.printoptions(precision=2, suppress=True, linewidth=20, formatter={"float": lambda value: "x"}):
            before = settings()
            assert main(["demo"]) == 0
            assert settings() == before
        assert capsys.readouterr().out == DEMO + ATTENTION

    @pytest.mark.smoke
    def test_narrow(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "40")
        assert main(["demo"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) == 40
        assert out.split() == [word for word in (DEMO + ATTENTION).replace("-" * 60, "-" * 40).split()]

    def test_another_attention_is_said(self, capsys, monkeypatch):
        from attendax import spec

        right = spec.attention
        monkeypatch.setattr(spec, "attention", lambda *args, **options: right(*args, **options) + 1e-5)
        assert main(["demo"]) == 1
        assert "The specification in NumPy DIFFERS" in capsys.readouterr().out


class TestMain:
    @pytest.mark.smoke
    def test_version(self, capsys):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["--version"])
        ours, jax, library = capsys.readouterr().out.splitlines()
        assert ours.startswith("attendax ")
        assert jax.startswith("jax ")
        assert library.startswith("native kernel: ")

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("argv", "usage", "said"),
        [
            (["embed", "a", "--jsno"], "embed", "unrecognized arguments: --jsno; did you mean --json?"),
            (["embed", "a", "--layr", "3"], "embed", "unrecognized arguments: --layr 3; did you mean --layer?"),
            (["embed", "a", "--layr=3"], "embed", "unrecognized arguments: --layr=3; did you mean --layer?"),
            (["check", "attendax:attention", "--onyl", "L6"], "check", "--onyl L6; did you mean --only?"),
            (["check", "x", "--only", "--sed", "3"], "check", "expected at least one argument"),
            (["demo", "more"], "demo", "unrecognized arguments: more"),
            (["demo", "--zzz"], "demo", "unrecognized arguments: --zzz"),
            (["embed", "a", "--pool", "maen"], "embed", "did you mean mean?"),
            (["embed", "a", "--layer", "x"], "embed", "invalid int value: 'x'"),
            (["embd", "a"], "", "did you mean embed?"),
            (["unknown"], "", "'judge', 'vectors')"),
            (["--verison"], "", "unrecognized arguments: --verison; did you mean --version?"),
            (["--jsno", "embed", "a"], "", "unrecognized arguments: --jsno"),
            ([], "", "attendax --help explains them"),
        ],
    )
    def test_the_usage_of_the_command_and_the_nearest_word(self, argv, usage, said, capsys):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(argv)
        err = capsys.readouterr().err
        command = f"attendax {usage}".strip()
        assert err.startswith((f"usage: {command} [-h]", "usage: attendax COMMAND", "usage: attendax check FUNCTION"))
        *_, last = err.splitlines()
        assert last.startswith(f"{command}: error: ")
        assert last.endswith(said)

    def test_as_a_module(self):
        done = subprocess.run([sys.executable, "-m", "attendax", "demo"], capture_output=True, text=True, check=True)
        assert done.stdout == DEMO + ATTENTION
