"""A small BERT checkpoint with random weights: its folder, and what is read from it; transformers, if installed."""

import pytest

import small_bert
from attendax.encoders.sentences import load_sentence_encoder


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """The folder, as the command takes it."""
    return str(small_bert.write_checkpoint(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="session")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="session")
def encoder(weights):
    return load_sentence_encoder(weights)
