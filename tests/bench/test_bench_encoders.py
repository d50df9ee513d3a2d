"""Benchmark of encoders: who is right is timed, the wrong and the absent are reported. No time is asserted."""

import numpy as np
import pytest

import small_bert


@pytest.fixture
def encoders():
    for package in ("psutil", "safetensors", "tokenizers"):
        pytest.importorskip(package)
    import encoders

    return encoders


@pytest.fixture
def workload(encoders, tmp_path):
    weights = small_bert.write_checkpoint(tmp_path / "weights")
    return encoders.Workload(weights, encoders=((2, 5),), layers=((2, 3, 6, 3, 7),), texts=3)


@pytest.mark.slow
def test_every_case_times_attendax_and_says_who_is_missing(encoders, workload, monkeypatch):
    monkeypatch.setattr(encoders.contestants, "find_spec", lambda package: None)
    said = []
    results = encoders.run(1, said.append, workload)
    assert len(results["cases"]) == 6
    assert results["left_out"] == []
    assert set(results["cases"]) <= set(said)
    for records in results["cases"].values():
        ours, *others = records
        assert ours["status"] == "timed"
        assert ours["ratio"][0] == 1
        assert ours["error"] <= encoders.TOLERANCE
        assert others
        assert all(record["status"] == "unable" for record in others)
    text = encoders.markdown(results | {"about": {"commit": "0123456789", "date": "2026-11-26T08:00:00+00:00"}})
    assert "commit 0123456, 2026-11-26" in text
    assert "torch is not installed" in text
    assert "encoder 2 x 5" in text


def test_a_wrong_contestant_is_not_timed(encoders):
    wrong = (lambda: [np.ones(3)]), list, None
    case = encoders.Case("case", 1, {"wrong": lambda: wrong}, lambda: [np.zeros(3)])
    (record,) = encoders._case(case, 1, lambda what: None, None)
    assert (record["status"], record["reason"]) == ("wrong", "wrong by 1.0e+00")
    assert "median_s" not in record


def test_texts_are_of_mixed_length_and_the_same_every_time(encoders):
    lengths = [len(text.split()) for text in encoders.mixed_texts(100)]
    assert min(lengths) >= 5
    assert max(lengths) > 60
    assert encoders.mixed_texts(3) == encoders.mixed_texts(3)


@pytest.mark.slow
def test_torch_agrees(encoders, workload):
    pytest.importorskip("torch")
    for training in (False, True):
        for make in (encoders._block, encoders._multi_head):
            records = encoders._case(make(*workload.layers[0], training), 1, lambda what: None, None)
            assert [record["status"] for record in records] == ["timed"] * 2, records
