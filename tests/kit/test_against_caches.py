"""`attendax diff` of functions that take the lengths of keys, and the offset of a block of queries among them."""

import numpy as np
import pytest

from attendax.conformance.against import diff


def softmax(scores):
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def made(lengths="j < l", begins="o", rule="j <= i"):
    """A function by three lines; an offset is a number, or one for each batch."""

    def attention(query, key, value, mask=None, key_lengths=None, is_causal=False, offset=None):
        i, j = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])
        if offset is not None:
            i = i + eval(begins, {"o": np.asarray(offset).reshape(-1, 1, 1, 1)})
        seen = np.ones((1, 1, query.shape[-2], len(j)), bool) if mask is None else mask
        if key_lengths is not None:
            seen = seen & eval(lengths, {"np": np, "j": j, "l": np.asarray(key_lengths)[:, None, None, None]})
        seen = seen & eval(rule, {"i": i, "j": j}) if is_causal else seen
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        return softmax(np.where(seen, scores, -np.inf)) @ value

    return attention


def by_mask(query, key, value, mask=None):
    return made()(query, key, value, mask=mask)


def of_one_number(q, k, v, causal=False, start_pos=0, mask=None):
    return made()(q, k, v, mask=mask, is_causal=causal, offset=int(start_pos))


@pytest.mark.smoke
def test_equal_says_that_lengths_and_offsets_were_varied():
    found = diff(made(), made())
    assert found.equal
    assert "mask, key_lengths, is_causal, offset;" in found.text()
    assert not found.notes


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ({"lengths": "j < l - 1"}, "key lengths, as they are read: A has as given: j < lengths; B has too short"),
        ({"lengths": "j < l + 1"}, "B has too long: j < lengths + 1"),
        ({"lengths": "j < l[:1]"}, "B has first batch: j < lengths[:1]"),
        ({"lengths": "j < l.max()"}, "B has largest of the batch: j < lengths.max()"),
        ({"lengths": "j >= 0"}, "key lengths, as they are read: A has as given: j < lengths; B ignores it"),
        ({"begins": "2 * o"}, "offset, as it is read: A has as given: offset; B has twice: 2 * offset"),
        ({"begins": "o[:1]"}, "B has first batch: offset[:1]"),
        ({"begins": "o.max()"}, "B has largest of the batch: offset.max()"),
        ({"begins": "0"}, "offset, as it is read: A has as given: offset; B ignores it"),
    ],
)
def test_a_line_is_named_and_made_equal(lines, words):
    found = diff(made(), made(**lines))
    assert [str(difference).count(words) for difference in found.differences] == [1], found.text()
    assert found.differences[0].shown
    assert found.explained, found.text()


def test_an_empty_cache_of_which_one_key_is_read():
    found = diff(made(), made("j < np.maximum(l, 1)"))
    assert found.explained, found.text()
    assert [difference.b for difference in found.differences] == ["has at least 1: j < np.maximum(lengths, 1)"]
    assert "key_lengths [0]: A gives 0, B 1" in found.text()


@pytest.mark.smoke(1)
@pytest.mark.parametrize(("a", "b"), [(made(), by_mask), (of_one_number, made()), (made(), of_one_number)])
def test_an_adapter_has_the_offset_of_each_batch(a, b):
    """By a mask where B has no offset, or takes one number for all."""
    found = diff(a, b)
    assert found.explained, found.text()
    names = {}
    exec(found.adapter or "adapted = None", names)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 2, t, 4)).astype(np.float32) for t in (3, 7, 7)]
    for offset in (1, 4) if a is of_one_number else (np.array([1, 4]), np.array([0, 2])):
        options = {"causal": True, "start_pos": offset} if a is of_one_number else {"is_causal": True, "offset": offset}
        if names["adapted"]:
            names["fn"] = b
            np.testing.assert_allclose(names["adapted"](*arrays, **options), a(*arrays, **options), atol=1e-5)
        else:
            assert "is_causal, offset" in ", ".join(found.notes)


def of_each_batch(query, key, value, is_causal=False, offset=0):
    """Whose default is a number."""
    return made()(query, key, value, is_causal=is_causal, offset=offset)


def up_to_8(query, key, value, is_causal=False, offset=0):
    return of_each_batch(query, key, value, is_causal, np.minimum(offset, 8))


def of_the_largest(query, key, value, is_causal=False, offset=0):
    return of_each_batch(query, key, value, is_causal, np.max(offset))


def test_offsets_that_small_texts_do_not_have_set_two_apart():
    found = diff(of_each_batch, up_to_8)
    assert not found.explained
    assert "is_causal True, offset [" in found.text()


def test_an_offset_of_each_batch_whose_default_is_a_number():
    found = diff(of_each_batch, of_the_largest)
    assert found.explained, found.text()
    assert "B has largest of the batch: offset.max()" in str(found.differences[0])
