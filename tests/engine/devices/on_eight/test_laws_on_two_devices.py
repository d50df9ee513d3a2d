"""The laws in short, as ``test_laws.py`` has them, where two devices share the keys and the queries of a call."""

import functools

import pytest
import sequences

import test_laws
from attendax import sharding

attend = functools.partial(sharding.attention_on_mesh, mesh=sequences.mesh_of(2), axis_name="seq")


@pytest.mark.law("L1", "sharded")
def test_l1_each_query_head_reads_the_key_head_of_its_group(rng):
    test_laws.test_l1_each_query_head_reads_the_key_head_of_its_group(attend, rng)


@pytest.mark.law("L2", "sharded")
def test_l2_scale_then_softcap_then_bias_then_softmax(rng):
    test_laws.test_l2_scale_then_softcap_then_bias_then_softmax(attend, rng)


@pytest.mark.law("L3", "sharded")
def test_l3_true_lets_a_query_look(rng):
    test_laws.test_l3_true_lets_a_query_look(attend, rng)


@pytest.mark.law("L4", "sharded")
def test_l4_causal_sees_up_to_its_own_position_and_the_offset(rng):
    test_laws.test_l4_causal_sees_up_to_its_own_position_and_the_offset(attend, rng)


@pytest.mark.law("L9", "sharded")
def test_l9_two_halves_of_the_keys_merge_into_the_whole(rng):
    test_laws.test_l9_two_halves_of_the_keys_merge_into_the_whole(attend, rng)


@pytest.mark.law("L10", "sharded")
def test_l10_dropout_keeps_what_the_definition_keeps(rng):
    test_laws.test_l10_dropout_keeps_what_the_definition_keeps(attend, rng)
