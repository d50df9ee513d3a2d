"""``attendax search``, and the rest of embedding as a tool: files, .npy, pooling, packing, progress."""

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
from attendax.commands import texts
from attendax.commands.embed import VectorFile
from attendax.encoders import encode
from attendax.encoders.batches import LADDER, SHORTEST, plan_rows
from attendax.encoders.embedding import embed, embed_by_specification
from attendax.encoders.sentences import load_sentence_encoder, tokenize
from attendax.exits import Refusal

pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")

LINES = ["a man is eating", "", "the meal", "food food food", "東京 is the meal .", "a man"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(small_bert.write_checkpoint(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def encoder(weights):
    return load_sentence_encoder(weights)


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


def cosines(encoder, query):
    vectors = [embed_by_specification(encoder, tokenize(encoder, text)) for text in (*LINES, query)]
    return np.array(vectors[:-1]) @ vectors[-1]


class TestSearch:
    def test_prints_the_nearest_lines(self, run, file, encoder):
        status, out, err = run("search", file, "a man is", "--top", 3)
        assert (status, err) == (0, "")
        right = np.where([bool(line) for line in LINES], cosines(encoder, "a man is"), -np.inf)
        order = np.argsort(-right)[:3]
        for line, number in zip(out.splitlines(), order, strict=True):
            cosine, found, text = line.split(maxsplit=2)
            assert (int(found), text) == (number + 1, LINES[number])
            assert abs(float(cosine) - right[number]) < 6e-4

    def test_stored_vectors_find_the_same(self, run, file, tmp_path):
        path = tmp_path / "vectors.npy"
        assert run("embed", "--file", file, "--output", path)[0] == 0
        wanted = run("search", file, "a man is")
        assert run("search", file, "a man is", "--vectors", path) == wanted
        assert len(wanted[1].splitlines()) == 5

    @pytest.mark.parametrize("stored", [False, True])
    def test_blank_lines_are_no_candidates(self, run, tmp_path, stored):
        """The others keep their numbers, whatever windows they are read in."""
        lines = ["", "a man", " \t ", "the meal", "\u3000"] + [""] * 3000 + ["food"]
        (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
        options = []
        if stored:
            np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal((len(lines), 6)).astype(np.float32))
            options = ["--vectors", tmp_path / "a.npy"]
        status, out, _ = run("search", tmp_path / "lines.txt", "a man", "--top", 99, *options)
        found = [line.split(maxsplit=2)[1:] for line in out.splitlines()]
        assert (status, sorted(found)) == (0, [["2", "a man"], ["3006", "food"], ["4", "the meal"]])

    @pytest.mark.parametrize("stored", [False, True])
    def test_standard_input(self, run, file, tmp_path, monkeypatch, stored):
        wanted = run("search", file, "a man is")
        options = []
        if stored:
            run("embed", "--file", file, "--output", tmp_path / "a.npy")
            options = ["--vectors", tmp_path / "a.npy"]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        assert run("search", "-", "a man is", *options) == wanted

    @pytest.mark.parametrize("content", [b"", b"\n \n"])
    def test_standard_input_without_a_line(self, run, monkeypatch, content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        said = "attendax search: standard input holds no line that is not blank\n"
        assert run("search", "-", "a man is") == (2, "", said)
        monkeypatch.setattr(sys, "stdin", None)
        assert run("search", "-", "a man is") == (2, "", "attendax search: standard input is closed\n")

    @pytest.mark.parametrize("columns", ["40", "57", "200", "1"])
    def test_as_wide_as_the_terminal(self, run, tmp_path, monkeypatch, columns):
        (tmp_path / "lines.txt").write_text("food " * 99 + "\n" + "東京" * 99, encoding="utf-8")
        monkeypatch.setenv("COLUMNS", columns)
        lines = run("search", tmp_path / "lines.txt", "a man is")[1].splitlines()
        widths = [sum(2 if c in "東京" else 1 for c in line) for line in lines]
        assert max(widths) == max(40, int(columns))

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["nowhere.txt", "a"], "cannot read nowhere.txt: No such file"),
            (["FILE", "a", "--top", "0"], "--top 0: at least 1 line"),
            (["EMPTY", "a"], "holds no line"),
            (["FILE", "a", "--vectors", "nowhere.npy"], "--vectors nowhere.npy"),
            (["FILE", "a", "--vectors", "WIDE.npy"], "holds float32 (6, 7), expected float32 (lines, 6)"),
            (["FILE", "a", "--vectors", "FEW.npy"], "holds 4 vectors, but"),
            (["FILE", "a", "--vectors", "PICKLE.npy"], "--vectors"),
            (["FILE", "a", "--vectors", "SEVERAL.npz"], "holds several arrays (.npz), expected one"),
            (["FILE", "a", "--vectors", "NAN.npy"], "the vector of line 3 is not finite"),
            (["FOLDER", "a"], "FOLDER holds no text that is not blank"),
            (["LONG", "a"], "line 2 of LONG has more than 1,048,576 bytes; is it text?"),
        ],
    )
    def test_refuses(self, run, file, tmp_path, argv, message):
        (tmp_path / "EMPTY").touch()
        np.save(tmp_path / "WIDE.npy", np.ones((6, 7), np.float32))
        np.save(tmp_path / "FEW.npy", np.ones((4, 6), np.float32))
        np.save(tmp_path / "PICKLE.npy", np.array([object()], object), allow_pickle=True)
        np.savez(tmp_path / "SEVERAL.npz", a=np.ones(3))
        np.save(tmp_path / "NAN.npy", np.where(np.arange(6) == 2, np.nan, 1).astype(np.float32)[:, None].repeat(6, 1))
        (tmp_path / "FOLDER").mkdir()
        (tmp_path / "LONG").write_bytes(b"a man\n" + b"\0" * (2**20 + 1))
        names = {"FILE": file} | {path.name: path for path in tmp_path.iterdir()}
        status, out, err = run("search", *(names.get(word, word) for word in argv))
        assert (status, out) == (2, "")
        assert message in err.replace(f"{tmp_path}/", "")
        assert err.count("\n") == 1


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

    @pytest.mark.parametrize("command", ["embed", "search"])
    def test_weights_that_give_nan(self, run, file, encoder, monkeypatch, command):
        """A NaN has no place in an order."""
        broken = jax.tree.map(lambda x: x * np.nan, encoder.params)
        monkeypatch.setattr(texts, "load", lambda args: encoder._replace(params=broken))
        status, out, err = run(command, *((file, "a man") if command == "search" else ("a man",)))
        assert (status, out) == (2, "")
        assert err == f"attendax {command}: the embedding of text 1 is not finite; are the weights damaged?\n"

    @pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes there")
    @pytest.mark.parametrize("limit", [64, 400])
    def test_a_full_disk_leaves_no_file(self, tmp_path, limit):
        """While it is written, or at the end: what a limit of the size of files looks like is a disk without room."""
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(Refusal, match=r"^--output .*a.npy: File too large$"):
                self.write(tmp_path / "a.npy", np.ones((30, 3), np.float32))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not any(tmp_path.iterdir())

    def test_an_error_leaves_no_file(self, run, tmp_path):
        (tmp_path / "bad.txt").write_bytes(b"a man\n\xff\n")
        status, _, err = run("embed", "--file", tmp_path / "bad.txt", "--output", tmp_path / "a.npy")
        assert status == 2
        assert "line 2 of" in err
        assert not list(tmp_path.glob("a.npy*"))

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["a", "--file", "b"], "give texts as arguments or in --file, not both"),
            (["a", "--json", "--output", "a.npy"], "choose one"),
            (["a", "--output", "a.txt"], "name a file that ends in .npy"),
            (["a", "--output", "no/folder/a.npy"], "there is no such folder"),
        ],
    )
    def test_refuses(self, run, argv, message):
        status, out, err = run("embed", *argv)
        assert (status, out) == (2, "")
        assert message in err

    def test_progress_is_for_a_terminal(self, monkeypatch):
        class Terminal(io.TextIOWrapper):
            def isatty(self):
                return True

        terminal = Terminal(io.BytesIO())
        monkeypatch.setattr(sys, "stderr", terminal)
        ticks = itertools.count()
        assert list(texts.progress(range(3), clock=lambda: next(ticks))) == [0, 1, 2]
        terminal.flush()
        shown = terminal.buffer.getvalue().decode()
        assert shown.startswith("\r1 texts, ")
        assert shown.endswith(" a second\n")
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
        assert list(texts.progress(range(3))) == [0, 1, 2]


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


class TestUnits:
    """A folder, and what is larger than a line."""

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "b").mkdir()
        (tmp_path / "a.txt").write_text("the meal\nfood food\n\na man is\neating\n", "utf-8")
        (tmp_path / "b" / "c.md").write_text("\nfood food food\n", "utf-8")
        (tmp_path / "b" / "no.bin").write_bytes(b"\xff\xfe\x00")
        (tmp_path / ".hidden").write_text("a man is eating", "utf-8")
        return tmp_path

    @pytest.mark.parametrize(
        ("unit", "places"),
        [
            ("line", ["a.txt:1", "a.txt:2", "a.txt:4", "a.txt:5", "b/c.md:2"]),
            ("paragraph", ["a.txt:1", "a.txt:4", "b/c.md:2"]),
            ("file", ["a.txt:1", "b/c.md:1"]),
        ],
    )
    def test_of_a_folder(self, unit, places, run, folder):
        status, out, err = run("search", folder, "a man is eating", "--unit", unit, "--top", 9)
        assert (status, err) == (0, "attendax: 1 files are not UTF-8 text and were left out\n")
        assert sorted(line.split()[1] for line in out.splitlines()) == places
        if unit == "paragraph":
            assert out.splitlines()[0].split()[1] == "a.txt:4"

    def test_paragraphs_of_a_file(self, run, folder):
        status, out, _ = run("search", folder / "a.txt", "the meal food food", "--unit", "paragraph")
        assert status == 0
        assert [line.split()[1] for line in out.splitlines()] == ["1", "4"]

    def test_vectors_are_those_of_lines(self, run, folder):
        assert run("search", folder, "food", "--vectors", "x.npy")[0] == 2
        assert run("search", folder / "a.txt", "food", "--unit", "file", "--vectors", "x.npy")[0] == 2
