"""Broken and hostile checkpoints: one clear line each, in bounded time and memory."""

import json
import subprocess
import sys

import numpy as np
import pytest

import small_bert
from attendax.cli import main
from attendax.encoders import load_bert
from attendax.encoders.sentences import load_sentence_encoder, tokenize
from attendax.legible import one_line

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}


@pytest.fixture
def refusal(capsys):
    """Load the checkpoint in Python and from the command line; the message, one line in both."""

    def load(directory, error=ValueError):
        with pytest.raises(error) as caught:
            load_sentence_encoder(directory)
        assert main(["embed", "a man", "--weights", str(directory)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.removeprefix("attendax embed: ").removesuffix("\n") == one_line(str(caught.value))
        assert len(err) < 500
        return str(caught.value)

    return load


def write_with_extra(path, name, dtype, size):
    """Add a tensor of any dtype, which NumPy may not have, to a safetensors file."""

    def add(header):
        end = max(x["data_offsets"][1] for key, x in header.items() if key != "__metadata__")
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + size]}

    small_bert.rewrite(path, add, bytes(size))


class TestConfig:
    @pytest.mark.smoke
    @pytest.mark.parametrize("layers", [3, 3 * 10**8])
    def test_more_layers_than_the_file_holds(self, tmp_path, refusal, layers):
        small_bert.write_checkpoint(tmp_path, files={"config.json": small_bert.CONFIG | {"num_hidden_layers": layers}})
        facts = f"config.json has num_hidden_layers={layers}, but model.safetensors holds 2 layers"
        assert refusal(tmp_path) == f"load_bert: {facts}"

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("num_hidden_layers", 10**19),
            ("num_hidden_layers", -1),
            ("num_hidden_layers", None),
            ("vocab_size", 0),
            ("vocab_size", -17),
            ("vocab_size", 10**400),
            ("max_position_embeddings", 2**31),
            ("max_position_embeddings", [13]),
            ("type_vocab_size", {"a": 2}),
            ("hidden_size", 6.0),
            ("num_attention_heads", 0),
            ("intermediate_size", "x" * 10**6),
        ],
    )
    def test_sizes_that_are_none(self, tmp_path, refusal, key, value):
        small_bert.write_checkpoint(tmp_path, files={"config.json": small_bert.CONFIG | {key: value}})
        least = 0 if key == "num_hidden_layers" else 1
        message = refusal(tmp_path)
        assert message.startswith(f"load_bert: config.json has {key}=")
        assert message.endswith(f", expected an integer from {least} to 2147483647")

    @pytest.mark.smoke
    @pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings", "intermediate_size"])
    def test_sizes_that_are_not_those_of_the_file(self, tmp_path, refusal, key):
        """Two thousand million rows are compared with the file, not allocated."""
        small_bert.write_checkpoint(tmp_path, files={"config.json": small_bert.CONFIG | {key: 2**31 - 1}})
        assert "2147483647" in refusal(tmp_path)

    @pytest.mark.smoke
    @pytest.mark.parametrize("eps", [float("nan"), float("inf"), -1e-12, 10**400, 2, True, None, [], "1e-12"])
    def test_eps(self, tmp_path, refusal, eps):
        small_bert.write_checkpoint(tmp_path, files={"config.json": small_bert.CONFIG | {"layer_norm_eps": eps}})
        message = refusal(tmp_path)
        assert message.startswith("load_bert: config.json has layer_norm_eps=")
        assert message.endswith(", expected a number from 0 to 1")

    def test_other_options(self, tmp_path, refusal):
        small_bert.write_checkpoint(
            tmp_path, files={"config.json": small_bert.CONFIG | {"model_type": ["x" * 999] * 99}}
        )
        assert refusal(tmp_path, NotImplementedError).endswith(", supported is 'bert'")

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            *((content, "is not valid JSON") for content in (b"{", b"\xff\xfe", b"[" * 200_000, b"1" * 9999)),
            (b"[1]", "config.json must hold an object, got an array"),
        ],
    )
    def test_json_of_another_kind(self, tmp_path, refusal, content, message):
        (small_bert.write_checkpoint(tmp_path) / "config.json").write_bytes(content)
        assert message in refusal(tmp_path)

    @pytest.mark.smoke
    def test_settings_without_end(self, tmp_path, refusal):
        with open(small_bert.write_checkpoint(tmp_path) / "config.json", "wb") as file:
            file.truncate(2**40)  # a hole: it takes no room on the disk
        assert refusal(tmp_path).endswith("config.json has 1099511627776 bytes, more than settings ever take")


class TestTensors:
    @pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
    def test_an_unused_tensor_is_not_read(self, tmp_path, dtype):
        path = small_bert.write_checkpoint(tmp_path) / "model.safetensors"
        right, _ = load_bert(tmp_path)
        write_with_extra(path, "cls.predictions.scale", dtype, 7)
        found, _ = load_bert(tmp_path)
        np.testing.assert_array_equal(found.blocks[1].W2, right.blocks[1].W2)

    @pytest.mark.smoke
    def test_a_used_tensor_of_another_dtype(self, tmp_path, refusal):
        tensors = small_bert.random_tensors()
        name = "encoder.layer.1.output.LayerNorm.bias"
        del tensors[name]
        small_bert.write_checkpoint(tmp_path, tensors=tensors)
        write_with_extra(tmp_path / "model.safetensors", name, "F8_E4M3", 6)
        assert refusal(tmp_path) == f"load_bert: tensor {name} has dtype F8_E4M3, supported are F16, BF16, F32, F64"

    def test_an_unknown_tensor_of_another_dtype(self, tmp_path, refusal):
        small_bert.write_checkpoint(tmp_path)
        write_with_extra(tmp_path / "model.safetensors", "z" * 10**5, "F8_E4M3", 1)
        assert "holds tensors that an encoder does not have: zzz" in refusal(tmp_path)

    @pytest.mark.parametrize("length", [0, 7, 8, 100, 2000, -7])
    def test_cut_off(self, tmp_path, refusal, length):
        path = small_bert.write_checkpoint(tmp_path) / "model.safetensors"
        path.write_bytes(path.read_bytes()[:length])
        assert "model.safetensors is corrupt (" in refusal(tmp_path)

    def test_a_header_without_end(self, tmp_path, refusal):
        path = small_bert.write_checkpoint(tmp_path) / "model.safetensors"
        path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:])
        assert "model.safetensors is corrupt (" in refusal(tmp_path)


def change_tokenizer(directory, change):
    """Write a small checkpoint whose tokenizer.json went through ``change``."""
    path = small_bert.write_checkpoint(directory) / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


class TestTokenizer:
    @pytest.mark.parametrize("limit", [None, 13])
    def test_more_special_tokens_than_the_limit(self, tmp_path, refusal, limit):
        def change(content):
            content["post_processor"]["single"] = content["post_processor"]["single"][:1] * 14

        change_tokenizer(tmp_path, change)
        named = "config.json has max_position_embeddings"
        if limit:
            named = "sentence_bert_config.json has max_seq_length"
            (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
        facts = f"{named}=13, but tokenizer.json adds 14 special tokens to every text"
        assert refusal(tmp_path) == f"load_sentence_encoder: {facts}"

    @pytest.mark.parametrize("place", ["vocabulary", "template"])
    def test_ids_beyond_the_table(self, tmp_path, refusal, place):
        """Few tokens, one of them with an id that the model has no embedding for."""

        def change(content):
            if place == "vocabulary":
                content["model"]["vocab"]["man"] = 17
            else:
                content["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [17]

        change_tokenizer(tmp_path, change)
        message = refusal(tmp_path)
        assert "tokenizer.json has a token of id " in message
        assert message.endswith(", but the model has embeddings for ids 0 to 16")

    def test_without_a_token_for_what_is_unknown(self, tmp_path, capsys):
        change_tokenizer(tmp_path, lambda content: content["model"].update(unk_token="[NONE]"))
        encoder = load_sentence_encoder(tmp_path)
        with pytest.raises(ValueError, match=r"^tokenize: tokenizer.json cannot split 'dog' \(.*\)$"):
            tokenize(encoder, "dog")
        assert main(["embed", "a man", "dog", "--weights", str(tmp_path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("attendax embed: tokenize: tokenizer.json cannot split 'dog' (")

    @pytest.mark.smoke
    @pytest.mark.parametrize("text", ["\ud800", None, 3, ["a"]])
    def test_refuses_what_is_no_text(self, tmp_path, text):
        encoder = load_sentence_encoder(small_bert.write_checkpoint(tmp_path))
        with pytest.raises(TypeError, match=r"^tokenize: text "):
            tokenize(encoder, text)

    @pytest.mark.parametrize("content", ["", "[]", "{}", "null", "\0"])
    def test_corrupt(self, tmp_path, refusal, content):
        (small_bert.write_checkpoint(tmp_path) / "tokenizer.json").write_text(content)
        assert "tokenizer.json is corrupt (" in refusal(tmp_path)


SPECIAL = {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}
BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "東": 2}, "merges": [["a", "東"]], "continuing_subword_prefix": "##"}
PANICS = {  # what the library cannot stand: a part of the file, and what becomes of it
    "a table of characters that is none": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "no table of characters": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}),
    "a special token that is not there": (
        "post_processor",
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[NO]", "type_id": 0}}], "pair": [],
         "special_tokens": {"[CLS]": SPECIAL}},
    ),
    "a second text where there is one": (
        "post_processor",
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [],
         "special_tokens": {"[CLS]": SPECIAL}},
    ),
    "a merge that is shorter than the prefix": ("model", BPE | {"merges": [["a", "b"]]}),
    "a merge whose letter is cut": ("model", BPE),
    "a merge of what is no token": ("model", BPE | {"merges": [["a", "##b"]], "vocab": {"a": 0}}),
}  # fmt: skip


class TestPanics:
    """The library is Rust: where it panics, it writes lines of its own, or ends the process."""

    @pytest.mark.smoke
    @pytest.mark.parametrize("what", PANICS)
    def test_one_line(self, tmp_path, capfd, what):
        part, content = PANICS[what]
        change_tokenizer(tmp_path, lambda file: file.update({part: content}))
        with pytest.raises(ValueError, match=r"^load_sentence_encoder: .*tokenizer.json is corrupt \(."):
            load_sentence_encoder(tmp_path)
        assert main(["embed", "a man", "--weights", str(tmp_path)]) == 2
        assert capfd.readouterr().err.splitlines()[-1].startswith("attendax embed: ")

    @pytest.mark.smoke
    def test_at_a_text(self, tmp_path, capfd):
        change_tokenizer(tmp_path, lambda file: file.update(pre_tokenizer={"type": "FixedLength", "length": 0}))
        encoder = load_sentence_encoder(tmp_path)
        with pytest.raises(ValueError, match=r"^tokenize: tokenizer.json cannot split 'a man' \(chunk size"):
            tokenize(encoder, "a man")
        assert main(["embed", "a man", "--weights", str(tmp_path)]) == 2
        assert capfd.readouterr().err.splitlines()[-1].startswith("attendax embed: ")

    def test_standard_error_may_be_closed(self, tmp_path):
        change_tokenizer(tmp_path, lambda file: file.update({PANICS["no table of characters"][0]: {}}))
        script = f"""
import os
os.close(2)
from attendax.encoders.sentences import load_sentence_encoder
try:
    load_sentence_encoder({str(tmp_path)!r})
except ValueError:
    print("refused")
"""
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == "refused\n"


class TestModules:
    @pytest.mark.smoke
    @pytest.mark.parametrize("path", ["../elsewhere", "1_Pooling/../../elsewhere", "/", "{outside}", ".."])
    @pytest.mark.parametrize("module", [0, 1])
    def test_a_path_that_leads_out_of_the_folder(self, tmp_path, refusal, path, module):
        """A file there that says "mean", which would be believed, is not even looked at."""
        outside = tmp_path / "elsewhere"
        outside.mkdir()
        (outside / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
        modules = [TRANSFORMER.copy(), POOLING.copy()]
        modules[module]["path"] = path.format(outside=outside)
        small_bert.write_checkpoint(tmp_path / "model", files={"modules.json": modules})
        assert refusal(tmp_path / "model").startswith(
            "load_sentence_encoder: modules.json leads out of its folder, to '"
        )

    @pytest.mark.smoke
    def test_a_transformer_in_a_folder_of_its_own(self, tmp_path, refusal):
        small_bert.write_checkpoint(tmp_path, files={"modules.json": [TRANSFORMER | {"path": "0_Bert"}, POOLING]})
        message = refusal(tmp_path, NotImplementedError)
        assert message.endswith("modules.json has the Transformer in '0_Bert', supported is the folder itself")

    @pytest.mark.smoke
    @pytest.mark.parametrize("path", ["2_Pooling", "1_Pooling\0"])
    def test_pooling_that_is_declared_and_missing(self, tmp_path, refusal, path):
        """The mean is what is assumed where nothing is declared, not where it cannot be read."""
        small_bert.write_checkpoint(tmp_path, files={"modules.json": [TRANSFORMER, POOLING | {"path": path}]})
        assert refusal(tmp_path, FileNotFoundError).endswith("config.json is missing")

    def test_modules_without_end(self, tmp_path, refusal):
        small_bert.write_checkpoint(tmp_path, files={"modules.json": [POOLING | {"type": "x" * 999}] * 999})
        assert " and 995 more; supported: Transformer" in refusal(tmp_path, NotImplementedError)

    @pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
    def test_files_may_be_links(self, tmp_path):
        """A download cache keeps the files elsewhere and links to them."""
        blobs = small_bert.write_checkpoint(tmp_path / "blobs", files={"modules.json": [TRANSFORMER, POOLING]})
        (tmp_path / "model" / "1_Pooling").mkdir(parents=True)
        (blobs / "pooling.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
        for name in ("config.json", "model.safetensors", "tokenizer.json", "modules.json"):
            (tmp_path / "model" / name).symlink_to(blobs / name)
        (tmp_path / "model" / "1_Pooling" / "config.json").symlink_to(blobs / "pooling.json")
        assert not load_sentence_encoder(tmp_path / "model").normalize
