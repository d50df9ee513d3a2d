"""The kernels on eight devices, with numbers: ``devices/on_eight/test_triton_divided.py`` where Triton is."""

import importlib.util

import pytest

from eight_devices import FOLDER, run


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed; .ci/gpu has it")
def test_bits_and_gradients_on_eight_devices():
    run(FOLDER / "test_triton_divided.py", "not slow")
