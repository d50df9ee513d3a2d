"""Embedding as a tool: files, .npy, pooling, packing, progress."""

import io
import itertools
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_bert
from attendax import spec
from attendax.cli import main
from attendax.commands.embed import VectorFile, progress
from attendax.encoders import encode
from attendax.encoders.embedding import LADDER, SHORTEST, embed, embed_by_specification, plan_rows
from attendax.encoders.sentences import load_sentence_encoder, tokenize
from attendax.exits import Refusal
from full_disk import full_disk

LINES = ["a man is eating", "", "the meal", "food food food", "東京 is the meal .", "a man"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join(LINES).encode())
    return path


@pytest.fixture
def run(weights, capsys):
    def call(command, *argv):
        status = main([command, *map(str, argv), "--weights", weights])
        return (status, *capsys.readouterr())

    return call


class TestOutput:
    def test_is_what_numpy_reads(self, run, file, tmp_path, encoder):
        path = tmp_path / "vectors.npy"
        status, out, err = run("embed", "--file", file, "--output", path)
        assert (status, out) == (0, "")
        assert err == f"attendax embed: wrote 6 embeddings to {path}\n"
        found = np.load(path)
        wanted = [embed_by_specification(encoder, tokenize(encoder, text)) for text in LINES]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "vectors.npy"]

    def write(self, path, vectors):
        with VectorFile(str(path)) as file:
            for vector in vectors:
                file.add(vector)

    @pytest.mark.parametrize("count", [0, 1, 12345])
    def test_a_file_of_any_size(self, tmp_path, count):
        self.write(tmp_path / "a.npy", np.arange(count, dtype=np.float32)[:, None].repeat(3, axis=1))
        found = np.load(tmp_path / "a.npy")
        assert found.shape == (count, 3 if count else 0)
        assert not count or found[-1, 0] == count - 1

    @pytest.mark.smoke
    @pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
    @pytest.mark.parametrize("limit", [64, 400])
    def test_a_full_disk_leaves_no_file(self, tmp_path, limit):
        """While it is written, or at the end."""
        with full_disk(limit), pytest.raises(Refusal, match=r"^--output .*a.npy: File too large$"):
            self.write(tmp_path / "a.npy", np.ones((30, 3), np.float32))
        assert not any(tmp_path.iterdir())

    @pytest.mark.smoke
    def test_an_error_leaves_no_file(self, run, tmp_path):
        (tmp_path / "bad.txt").write_bytes(b"a man\n\xff\n")
        status, _, err = run("embed", "--file", tmp_path / "bad.txt", "--output", tmp_path / "a.npy")
        assert status == 2
        assert "line 2 of" in err
        assert not list(tmp_path.glob("a.npy*"))

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["a", "--file", "b"], "texts are both arguments and in --file; pass one of them"),
            (["a", "--json", "--output", "a.npy"], "choose one"),
            (["a", "--output", "a.txt"], "name a file that ends in .npy"),
            (["a", "--output", "no/folder/a.npy"], "there is no such folder"),
            (["--file", "LONG"], "line 2 of LONG has more than 1,048,576 bytes; is it text?"),
        ],
    )
    def test_refuses(self, run, tmp_path, monkeypatch, argv, message):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "LONG").write_bytes(b"a man\n" + b"\0" * (2**20 + 1))
        status, out, err = run("embed", *argv)
        assert (status, out) == (2, "")
        assert message in err

    @pytest.mark.smoke
    def test_progress_is_for_a_terminal(self, monkeypatch):
        class Terminal(io.TextIOWrapper):
            def isatty(self):
                return True

        terminal = Terminal(io.BytesIO())
        monkeypatch.setattr(sys, "stderr", terminal)
        ticks = itertools.count()
        assert list(progress(range(3), clock=lambda: next(ticks))) == [0, 1, 2]
        terminal.flush()
        shown = terminal.buffer.getvalue().decode()
        assert shown.startswith("\r1 texts, ")
        assert shown.endswith(" a second\n")
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
        assert list(progress(range(3))) == [0, 1, 2]


class TestPooling:
    @pytest.mark.slow
    def test_the_first_token(self, encoder):
        first = encoder._replace(pooling="cls")
        for text in LINES[:2]:
            tokens = tokenize(encoder, text)
            hidden = encode(
                np.array([tokens.ids], np.int32),
                jax.tree.map(np.asarray, encoder.params),
                config=encoder.config,
                twin=spec,
            )[0, 0]
            (found,) = (result.vector for result in embed(first, [text]))
            np.testing.assert_allclose(found, hidden / np.linalg.norm(hidden), atol=1e-5)
            np.testing.assert_allclose(embed_by_specification(first, tokens), found, atol=1e-5)

    @pytest.mark.parametrize("pooling", [{"pooling_mode": "cls"}, {"pooling_mode_cls_token": True}])
    def test_what_the_checkpoint_says(self, tmp_path, pooling):
        modules = [
            {"type": f"sentence_transformers.models.{kind}", "path": path}
            for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
        ]
        files = {"modules.json": modules, "1_Pooling/config.json": pooling}
        small_bert.write_checkpoint(tmp_path, files=files)
        assert load_sentence_encoder(tmp_path).pooling == "cls"


class TestPacked:
    @pytest.mark.slow
    @pytest.mark.parametrize("pooling", ["mean", "cls"])
    def test_equals_one_text_at_a_time(self, encoder, pooling):
        encoder = encoder._replace(pooling=pooling)
        texts = [*LINES, "the " * 30, "a", "food"]
        for result in embed(encoder, texts, packed=True):
            wanted = embed_by_specification(encoder, result.tokens)
            np.testing.assert_allclose(result.vector, wanted, atol=1e-5, rtol=0)

    @given(st.lists(st.integers(2, 300), max_size=60), st.sampled_from([13, 256, 300, 512]))
    def test_every_text_once_and_no_row_too_long(self, lengths, limit):
        lengths = [min(length, limit) for length in lengths]
        plan = plan_rows(lengths, limit=limit)
        assert sorted(i for _, rows in plan for row in rows for i in row) == list(range(len(lengths)))
        for columns, rows in plan:
            assert columns in (*LADDER, limit)
            assert all(sum(lengths[i] for i in row) <= columns for row in rows)
            assert all(len(row) <= max(1, columns // SHORTEST) for row in rows)
