"""`attendax diff`: the log-sum-exp of queries without any key, keywords that nobody knows, and bfloat16."""

import numpy as np
import pytest

import right_attention
from test_against_slips import here, masked, scored, softmax


def logs(empty, swapped=False, base=1.0):
    def attention(q, k, v, mask=None, return_lse=False):
        out, seen = masked(q, k, v, mask), np.ones((1, 1, 1, 1), bool) if mask is None else mask
        scores = np.where(seen, scored(q, k), -np.inf)
        top = scores.max(-1, keepdims=True, initial=-1e30)  # of scores of -800 the powers alone are 0
        total = np.exp(scores - top).sum(-1)
        lse = np.where(total == 0, np.float32(empty), (top[..., 0] + np.log(np.where(total == 0, 1, total))) / base)
        return (out, lse.swapaxes(1, 2) if swapped else lse) if return_lse else out

    return attention


@pytest.mark.parametrize("other", [logs(0), logs(np.inf), logs(-1e30), logs(0, swapped=True), logs(7, base=np.log(2))])
def test_the_log_sum_exp_of_no_key(other):
    """Named, with the smallest input, and made equal; also beside another layout and another base."""
    law = logs(-np.inf)
    assert here(law, law).equal
    assert here(other, other).equal
    for a, b in ((law, other), (other, law)):
        found = here(a, b)
        assert "log-sum-exp of a query without any key: A is " in found.text()
        assert found.explained, found.text()


def test_a_log_sum_exp_of_no_key_that_is_no_number_is_not_compared():
    def of_low_scores(q, k, v, mask=None, return_lse=False):
        out, lse = logs(-np.inf)(q, k, v, mask, True)
        lse = np.where(np.isneginf(lse), np.log(np.exp(scored(q, k)).sum(-1)) - 1e4, lse)
        return (out, lse) if return_lse else out

    found = here(logs(-np.inf), of_low_scores)
    assert "B's log-sum-exp of a query without any key (no one number)" in found.notes
    assert not [x for x in found.differences if x.name == "log-sum-exp of a query without any key"]


def with_sinks(turned):
    def attention(q, k, v, *, sinks=None):
        share = np.exp(scored(q, k)).sum(-1, keepdims=True)
        sink = 0 if sinks is None else np.exp(sinks[::-1] if turned else sinks)[:, None, None]
        return masked(q, k, v) * share / (share + sink)

    return attention


def of_segments(rule):
    def attention(q, k, v, *, segment_ids=None):
        i = segment_ids
        return masked(q, k, v, None if i is None else rule(i[:, None, :, None], i[:, None, None]))

    return attention


def with_a_table(q, k, v, *, table=None):
    """Of a keyword that none of the tried values suits."""
    return masked(q, k, v) if table is None else masked(q, k, v) + table["rows"]


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (with_sinks(False), with_sinks(True), "sinks [0.5, -1. ]"),
        (of_segments(np.equal), of_segments(np.greater_equal), "segment_ids [["),
    ],
)
def test_arrays_for_a_keyword_that_takes_no_number(a, b, shown):
    assert shown in here(a, b).text()
    assert here(a, a).equal


def test_a_keyword_that_takes_nothing_is_not_compared():
    found = here(with_a_table, with_a_table)
    assert found.equal
    assert [x for x in found.notes if "table" in x]


def in_float32(q, k, v):
    return masked(*(x.astype(np.float32) for x in (q, k, v))).astype(q.dtype)


def of_rounded_products(q, k, v):
    wide = [x.astype(np.float32) for x in (q, k, v)]
    products = (wide[0] @ wide[1].swapaxes(-1, -2)).astype(q.dtype).astype(np.float32)
    return (softmax(products * q.shape[-1] ** -0.5) @ wide[2]).astype(q.dtype)


def of_segments(q, k, v, q_segment_ids=None, kv_segment_ids=None):
    given = {"query_segment_ids": q_segment_ids, "key_segment_ids": kv_segment_ids}
    return right_attention.attend(q, k, v, **({} if q_segment_ids is None else given))


def of_attendax(query, key, value, *, query_segment_ids=None, key_segment_ids=None):
    return of_segments(query, key, value, query_segment_ids, key_segment_ids)


def ignoring(q, k, v, q_segment_ids=None, kv_segment_ids=None):
    return of_segments(q, k, v)


def halved(q, k, v, q_segment_ids=None, kv_segment_ids=None):
    return of_segments(q, k, v, q_segment_ids, None if kv_segment_ids is None else kv_segment_ids // 2)


@pytest.mark.parametrize(("other", "names"), [(of_segments, ["names"]), (ignoring, ["segments read", "names"])])
def test_segment_ids_are_two_keywords(other, names):
    found = here(of_attendax, other)
    assert found.explained, found.text()
    assert [difference.name for difference in found.differences] == names
    assert "segments" in found.checked.varied
    assert ("q_segment_ids=query_segment_ids, kv_segment_ids=key_segment_ids" in found.adapter) == (names == ["names"])


def test_segment_ids_that_are_read_as_nobody_does():
    found = here(of_attendax, halved)
    assert not found.explained
    assert "query_segment_ids [[0]], key_segment_ids [[0, 1]]: A gives 1, B 1.119203" in found.why


def test_the_distance_in_bfloat16_is_told():
    assert here(in_float32, in_float32).text().startswith("Exactly equal in ")
    found = here(in_float32, of_rounded_products)
    assert found.checked.narrow > 2e-3
    assert found.text().startswith("Exactly equal, in bfloat16 within 0.00")
