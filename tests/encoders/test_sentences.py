"""A checkpoint that embeds sentences: the conventions beside its weights, and text cut into tokens."""

import jax
import numpy as np
import pytest

import small_bert
from attendax.encoders.embedding import embed, embed_by_specification
from attendax.encoders.sentences import load_sentence_encoder, tokenize

MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]
POOLING = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def load(directory, **files):
    names = {"modules": "modules.json", "pooling": "1_Pooling/config.json", "limits": "sentence_bert_config.json"}
    names["prompts"] = "config_sentence_transformers.json"
    files = {names[name]: content for name, content in files.items()}
    return load_sentence_encoder(small_bert.write_checkpoint(directory, files=files))


class TestLoad:
    def test_three_files_are_enough(self, encoder):
        assert (encoder.max_tokens, encoder.normalize, encoder.lower_case) == (13, True, False)
        assert {leaf.dtype for leaf in jax.tree.leaves(encoder.params)} == {np.dtype(np.float32)}

    def test_conventions_are_followed(self, tmp_path):
        limits = {"max_seq_length": 7, "do_lower_case": True}
        encoder = load(tmp_path, modules=MODULES, pooling=POOLING, limits=limits, prompts={"default_prompt_name": None})
        assert (encoder.max_tokens, encoder.normalize, encoder.lower_case) == (7, True, True)

    @pytest.mark.parametrize("limit", [2, None])
    def test_the_smallest_limit_and_none(self, tmp_path, limit):
        encoder = load(tmp_path, limits={"max_seq_length": limit})
        assert encoder.max_tokens == (limit or 13)
        assert tokenize(encoder, "a man").pieces[-1] == "[SEP]"

    def test_a_model_without_room(self, tmp_path):
        config = small_bert.CONFIG | {"max_position_embeddings": 1}
        with pytest.raises(ValueError, match=r"config.json has max_position_embeddings=1, but"):
            load_sentence_encoder(small_bert.write_checkpoint(tmp_path, config=config))

    @pytest.mark.slow
    def test_without_normalize(self, tmp_path):
        """A checkpoint that lists its modules and no Normalize among them publishes the plain mean."""
        plain, unit = (
            load(tmp_path / name, modules=modules, pooling=POOLING)
            for name, modules in (("plain", MODULES[:2]), ("unit", MODULES))
        )
        (first,), (second,) = embed(plain, ["a man"]), embed(unit, ["a man"])
        assert not np.isclose(np.linalg.norm(first.vector), 1.0, atol=1e-2)
        np.testing.assert_allclose(first.vector / np.linalg.norm(first.vector), second.vector, atol=1e-6)
        np.testing.assert_allclose(embed_by_specification(plain, first.tokens), first.vector, atol=1e-5)

    @pytest.mark.parametrize("pooling", [{"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}, {}])
    def test_either_spelling_of_mean_pooling(self, tmp_path, pooling):
        assert load(tmp_path, modules=MODULES, pooling=pooling).normalize

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"pooling": POOLING | {"pooling_mode_cls_token": True}}, "pooling_mode_cls_token"),
            ({"pooling": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}}, "pooling_mode_max_tok"),
            ({"modules": MODULES, "pooling": {"pooling_mode": "lasttoken"}}, "'lasttoken', supported are mean and cls"),
            ({"modules": [*MODULES[:2], {"type": "a.Dense", "path": "2_Dense"}]}, "Transformer, Pooling, Dense; supp"),
            (
                {"pooling": {"pooling_mode_mean_tokens": False}},
                r"declares the pooling \[\], supported are mean and cls",
            ),
            ({"modules": [MODULES[0], *MODULES[:2]]}, "asks for Transformer, Transformer, Pooling; supported"),
            ({"modules": MODULES[:1]}, "modules.json asks for Transformer; supported"),
            ({"prompts": {"default_prompt_name": "query"}}, "default prompt 'query'"),
        ],
    )
    def test_refuses_other_conventions(self, tmp_path, files, message):
        with pytest.raises(NotImplementedError, match=rf"^load_sentence_encoder: .*{message}"):
            load(tmp_path, **files)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"limits": {"max_seq_length": 12.5}}, "max_seq_length=12.5, expected an integer"),
            ({"limits": {"max_seq_length": True}}, "max_seq_length=True, expected an integer"),
            ({"limits": {"max_seq_length": "12"}}, "max_seq_length='12', expected an integer"),
            ({"limits": {"max_seq_length": 0}}, "config.json has max_seq_length=0, but tokenizer.json adds 2 special"),
            ({"limits": {"max_seq_length": 1}}, "sentence_bert_config.json has max_seq_length=1, but "),
            ({"limits": {"max_seq_length": -(10**60)}}, r"max_seq_length=-1000000000.*\.\.\..*000, but tokenizer.json"),
            ({"limits": {"max_seq_length": 10**60}}, r"max_seq_length=10000000000.*\.\.\..*000, but the model has 13"),
            ({"limits": {"do_lower_case": "false"}}, "do_lower_case='false', expected true or false"),
            ({"pooling": {"pooling_mode_cls_token": 1}}, "pooling_mode_cls_token=1, expected true or false"),
            ({"modules": []}, "modules.json lists no module"),
            ({"modules": [MODULES[0], MODULES[1] | {"path": 1}]}, "modules.json must list .*, both strings"),
            ({"modules": ["Transformer", "Pooling"]}, "modules.json must list objects"),
            ({"limits": {"max_seq_length": 14}}, "max_seq_length=14, but the model has 13 positions"),
            ({"modules": [{"path": ""}]}, "modules.json must list objects with a type and a path"),
            ({"modules": {}}, "modules.json must hold an array, got an object"),
        ],
    )
    def test_refuses_contradictions(self, tmp_path, files, message):
        with pytest.raises(ValueError, match=rf"^load_sentence_encoder: .*{message}"):
            load(tmp_path, **files)

    @pytest.mark.smoke
    def test_a_tokenizer_that_is_missing(self, tmp_path):
        (small_bert.write_checkpoint(tmp_path) / "tokenizer.json").unlink()
        with pytest.raises(FileNotFoundError, match=r"tokenizer.json is missing$"):
            load_sentence_encoder(tmp_path)


class TestTokenize:
    @pytest.mark.parametrize(
        ("text", "pieces"),
        [
            ("A man is eating foods.", "[CLS] a man is eating food ##s . [SEP]"),
            ("", "[CLS] [SEP]"),
            (" \t\u200b", "[CLS] [SEP]"),
            ("東京", "[CLS] 東 京 [SEP]"),
            ("\U0001f355 the", "[CLS] [UNK] the [SEP]"),
        ],
    )
    def test_pieces(self, encoder, text, pieces):
        """The padding and truncation in tokenizer.json, both at 4 here, are off."""
        tokens = tokenize(encoder, text)
        assert tokens.pieces == pieces.split()
        assert tokens.ids == [small_bert.VOCABULARY.index(piece) for piece in tokens.pieces]
        assert (tokens.num_tokens, tokens.truncated) == (len(tokens.ids), False)

    @pytest.mark.parametrize("length", [10, 11, 12, 500])
    def test_cut_as_the_published_model_cuts(self, encoder, length):
        """[CLS], the first 11 of the text, [SEP]: 13 in all, the positions of this model."""
        words = [small_bert.WORDS[i % 3] for i in range(length)]
        tokens = tokenize(encoder, " ".join(words))
        assert tokens.pieces == ["[CLS]", *words[:11], "[SEP]"]
        assert tokens.num_tokens == length + 2
        assert tokens.truncated == (length > 11)

    def test_lower_case(self, encoder):
        small_bert_lower = encoder._replace(lower_case=True)
        assert tokenize(small_bert_lower, "MAN").pieces == ["[CLS]", "man", "[SEP]"]
