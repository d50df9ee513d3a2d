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


class TestDemo:
    def test_prints_the_seed_s_figures(self, capsys):
        assert main(["demo"]) == 0
        assert capsys.readouterr().out == DEMO

    def test_depends_on_no_setting_and_changes_none(self, capsys):
        def settings():
            return np.get_printoptions(), np.random.get_state()[1].tolist()  # noqa: NPY002 the global one is meant

        with np.printoptions(precision=2, suppress=True, linewidth=20, formatter={"float": lambda value: "x"}):
            before = settings()
            assert main(["demo"]) == 0
            assert settings() == before
        assert capsys.readouterr().out == DEMO


class TestMain:
    def test_version(self, capsys):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["--version"])
        assert capsys.readouterr().out.startswith("attendax ")

    @pytest.mark.parametrize("argv", [[], ["unknown"], ["embed", "--unknown"], ["embed", "a", "--layer", "x"]])
    def test_wrong_usage(self, argv, capsys):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(argv)
        assert "usage: attendax" in capsys.readouterr().err

    def test_as_a_module(self):
        done = subprocess.run([sys.executable, "-m", "attendax", "demo"], capture_output=True, text=True, check=True)
        assert done.stdout == DEMO
