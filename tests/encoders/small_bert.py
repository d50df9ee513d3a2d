"""A small random BERT checkpoint in the published format, for tests that need no real weights."""

import json
import struct

import numpy as np
import pytest

WORDS = ["a", "man", "is", "eating", "food", "meal", "the", "##s", "東", "京", "."]
EXTRA = "the extra 'demo' is not installed"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]

# Awkward on purpose: no two sizes alike, so that a transposed or misplaced table does not fit by accident.
CONFIG = {
    "model_type": "bert",
    "vocab_size": 17,
    "max_position_embeddings": 13,
    "type_vocab_size": 2,
    "hidden_size": 6,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
}


def random_tensors(config=CONFIG, *, seed=0, dtype=np.float32):
    """Every tensor of the published naming, matrices (out, in), nothing zero and no gamma 1: each one matters."""
    rng = np.random.default_rng(seed)
    M, F = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], M),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], M),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], M),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        linear = {
            "attention.self.query": (M, M),
            "attention.self.key": (M, M),
            "attention.self.value": (M, M),
            "attention.output.dense": (M, M),
            "intermediate.dense": (F, M),
            "output.dense": (M, F),
        }
        for part, shape in linear.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[:1]}
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    tensors = {name: rng.normal(0.0, 0.5, shape) for name, shape in shapes.items()}
    for norm in norms:
        tensors |= {f"{norm}.weight": rng.uniform(0.5, 1.5, M), f"{norm}.bias": rng.normal(0.0, 0.5, M)}
    return {name: tensor.astype(dtype) for name, tensor in tensors.items()}


def write_checkpoint(directory, *, config=CONFIG, tensors=None, files=None):
    """Write ``config.json``, ``model.safetensors``, ``tokenizer.json`` and ``files`` (name -> JSON content)."""
    save_file = pytest.importorskip("safetensors.numpy", reason=EXTRA).save_file
    directory.mkdir(parents=True, exist_ok=True)
    save_file(random_tensors(config) if tensors is None else tensors, directory / "model.safetensors")
    for name, content in ({"config.json": config} | (files or {})).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    write_tokenizer(directory / "tokenizer.json")
    return directory


def write_tokenizer(path):
    """A BERT tokenizer of a few words; like the published file, it asks for padding and truncation, here at 4."""
    tokenizers = pytest.importorskip("tokenizers", reason=EXTRA)
    ids = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    tokenizer.enable_padding(length=4)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path))


def rewrite(path, change, more=b""):
    """Change the header of a safetensors file, and add bytes at its end."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + more)
