"""Files are there whole or not at all: two writers, a full disk, links, pipes, ``/dev/stdout``."""

import json
import os
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

import small_bert
from attendax import encoders, writing
from attendax.cli import main
from attendax.commands.embed import VectorFile
from attendax.exits import Refusal
from full_disk import full_disk
from random_encoders import random_params
from test_encoder_options import CONFIGS
from test_saved_models import BERT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes, pipes and links there")
OLD = "what stood there before"
CHECK = ["check", "attendax.spec:attention", *["--ignore", "score_mod", "--level", "forward", "--only"], "scale given"]


@pytest.fixture
def weights(tmp_path):
    pytest.importorskip("tokenizers", reason="the extra 'demo' is not installed")
    return str(small_bert.write_checkpoint(tmp_path / "bert"))


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def embed(weights, option, path):
    return main(["embed", "a man", "the meal", "--weights", weights, option, str(path)])


class TestTwoAtOnce:
    def test_the_file_is_that_of_one(self, out):
        path = str(out / "a.npy")
        with VectorFile(path) as one:
            for k in range(3000):
                one.add(np.full(5, k, np.float32))
                if k == 1000:
                    with VectorFile(path) as other:
                        other.add(np.full(5, -1, np.float32))
                    np.testing.assert_array_equal(np.load(path), np.full((1, 5), -1))
        np.testing.assert_array_equal(np.load(path), np.arange(3000)[:, None].repeat(5, axis=1))
        assert os.listdir(out) == ["a.npy"]

    def test_many_threads(self, out):
        texts = [f"{k}" * 100_000 for k in range(8)]
        threads = [threading.Thread(target=writing.write, args=(out / "a.txt", text)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (out / "a.txt").read_text() in texts
        assert os.listdir(out) == ["a.txt"]


class TestFullDisk:
    @pytest.mark.parametrize(("option", "name"), [("--output", "a.npy"), ("--page", "a.html"), ("--map", "a.png")])
    @full_disk()
    def test_embed_leaves_the_old_file(self, weights, out, capsys, option, name):
        (out / name).write_text(OLD)
        assert embed(weights, option, out / name) == 2
        assert capsys.readouterr().err == f"attendax embed: {option} {out / name}: File too large\n"
        assert [path.read_text() for path in out.iterdir()] == [OLD]

    @pytest.mark.parametrize("kind", ["json", "markdown"])
    @full_disk()
    def test_check_leaves_the_old_file(self, out, capsys, kind):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        (out / "a").write_text(OLD)
        assert main([*CHECK, "--quiet", "--in-process", f"--{kind}", str(out / "a")]) == 2
        assert capsys.readouterr().err == f"attendax check: cannot write {out / 'a'}: File too large\n"
        assert [path.read_text() for path in out.iterdir()] == [OLD]

    @full_disk()
    def test_save_leaves_the_old_file(self, out):
        """And raises what its docstring says."""
        pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
        config, path = CONFIGS["modern"], out / "a.safetensors"
        path.write_text(OLD)
        with pytest.raises(OSError, match="File too large"):
            encoders.save(path, random_params(config), config)
        assert [path.read_text() for path in out.iterdir()] == [OLD]

    @full_disk()
    def test_save_bert_leaves_both_old_files(self, out):
        pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
        for name in ("config.json", "model.safetensors"):
            (out / name).write_text(OLD)
        with pytest.raises(OSError, match="File too large"):
            encoders.save_bert(out, random_params(BERT, dtype=np.float32), BERT)
        assert [path.read_text() for path in out.iterdir()] == [OLD, OLD]

    @full_disk()
    def test_an_error_meanwhile_is_the_one_that_is_raised(self, out):
        with pytest.raises(Refusal, match="the reason"), writing.whole(out / "a") as file:  # noqa: PT012
            file.write(b"x" * 100)
            raise Refusal("the reason")
        assert os.listdir(out) == []

    @pytest.mark.smoke
    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
    @pytest.mark.parametrize("linked", [False, True])
    @pytest.mark.parametrize("option", ["--output", "--page", "--map"])
    def test_a_device(self, weights, out, capsys, option, linked):
        name = {"--output": "a.npy", "--page": "a.html", "--map": "a.png"}[option]
        if linked:
            (out / name).symlink_to("/dev/full")
        path = out / name if linked else "/dev/full"
        assert embed(weights, option, path) == 2
        assert capsys.readouterr().err == f"attendax embed: {option} {path}: No space left on device\n"
        assert writing.is_stream("/dev/full")

    @pytest.mark.smoke
    def test_no_folder(self, out):
        with pytest.raises(FileNotFoundError) as caught:
            writing.write(out / "no" / "a.txt", "")
        assert caught.value.filename == str(out / "no" / "a.txt")


class TestPlaces:
    @pytest.mark.parametrize("there", [False, True])
    def test_a_link_is_followed(self, out, there):
        (out / "elsewhere").mkdir()
        if there:
            (out / "elsewhere" / "b.txt").write_text(OLD)
        (out / "a.txt").symlink_to("elsewhere/b.txt")
        writing.write(out / "a.txt", "new")
        assert (out / "a.txt").is_symlink()
        assert [path.read_text() for path in (out / "elsewhere").iterdir()] == ["new"]

    def test_permissions_stay(self, out):
        (out / "a.txt").touch(0o640)
        (out / "a.txt").chmod(0o640)
        mask = os.umask(0o027)
        try:
            writing.write(out / "a.txt", "new")
            writing.write(out / "b.txt", "new")
        finally:
            os.umask(mask)
        assert [oct((out / name).stat().st_mode & 0o777) for name in ("a.txt", "b.txt")] == ["0o640", "0o640"]

    @pytest.mark.smoke
    def test_what_may_not_be_written_stays(self, out, monkeypatch):
        (out / "a.txt").write_text(OLD)
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
        with pytest.raises(PermissionError, match="Permission denied"):
            writing.write(out / "a.txt", "new")
        assert [path.read_text() for path in out.iterdir()] == [OLD]

    def test_names_of_any_length(self, out):
        for name in ("a" * 251 + ".txt", "東" * 80 + ".txt"):
            writing.write(out / name, "new")
            assert (out / name).read_text() == "new"

    def test_a_pipe_is_written_to(self, weights, out):
        """It gets all, with the header that is known at the end only."""
        os.mkfifo(out / "pipe")
        read = []
        reader = threading.Thread(target=lambda: read.append((out / "pipe").read_bytes()))
        reader.start()
        assert embed(weights, "--output", out / "pipe") == 0
        reader.join()
        (out / "a.npy").write_bytes(read[0])
        assert np.load(out / "a.npy").shape == (2, 6)
        assert (out / "pipe").is_fifo()

    @pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "link"])
    @pytest.mark.parametrize("kind", ["pipe", "file"])
    def test_standard_output(self, out, place, kind):
        """It comes between what is printed before and after it, and what a file held stays in front."""
        (out / "link").symlink_to("/dev/stdout")
        script = "from attendax import writing; print('before'); writing.write('PLACE', 'page\\n'); print('after')"
        command = [sys.executable, "-c", script.replace("PLACE", place)]
        with open(out / "log", "a") as log:
            print(OLD, file=log, flush=True)
            stream = subprocess.PIPE if kind == "pipe" else log
            done = subprocess.run(command, cwd=out, stdout=stream, check=True)
        text = f"{OLD}\n{done.stdout.decode()}" if kind == "pipe" else (out / "log").read_text()
        assert text.split("\n") == [OLD, "before", "page", "after", ""]
        assert sorted(os.listdir(out)) == ["link", "log"]

    def test_a_page_to_standard_output(self, weights):
        command = [sys.executable, "-m", "attendax", "embed", "a man", "the meal", "--weights", weights]
        done = subprocess.run([*command, "--page", "/dev/stdout"], stdout=subprocess.PIPE, text=True, check=True)
        page, _, table = done.stdout.partition("</html>\n")
        assert page.startswith("<!doctype html>")
        assert table.startswith("1  a man\n2  the meal\n")

    def test_a_report_to_standard_output(self, out):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        command = [sys.executable, "-m", "attendax", *CHECK, "--json", "/dev/stdout"]
        done = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, check=True)
        assert json.JSONDecoder().raw_decode(done.stdout.decode())[0]["ok"]
        assert os.listdir(out) == []


def test_save_follows_a_link_and_keeps_the_old_until_then(out):
    pytest.importorskip("safetensors", reason="the extra 'demo' is not installed")
    config = CONFIGS["modern"]
    (out / "a.safetensors").symlink_to(out / "b.safetensors")
    params = random_params(config)
    encoders.save(out / "a.safetensors", params, config)
    assert (out / "a.safetensors").is_symlink()
    jax.tree.map(np.testing.assert_array_equal, encoders.load(out / "b.safetensors")[0], params)
