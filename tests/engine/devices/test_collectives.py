"""The parser of a compiled program's collectives, on texts as XLA writes them."""

import pytest

from collectives import bytes_received, collectives, flops

pytestmark = pytest.mark.smoke

TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (state: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %state = (s32[], f32[2,3]) parameter(0)
  %x = f32[2,3]{1,0} get-tuple-element(%state), index=1
  %moved = f32[2,3]{1,0} collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}
  ROOT %both = (s32[], f32[2,3]) tuple(%state, %moved)
}

%branch (y: f32[2,3]) -> f32[16,3] {
  %y = f32[2,3]{1,0} parameter(0)
  ROOT %all = f32[16,3]{1,0} all-gather(%y), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
}

ENTRY %main (p: f32[2,3], q: f32[3,5]) -> f32[2,5] {
  %p = f32[2,3]{1,0} parameter(0)
  %q = f32[3,5]{1,0} parameter(1)
  %loop = (s32[], /*index=1*/f32[2,3]) while(%p), body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %endless = (s32[], f32[2,3]) while(%p), body=%body
  %maybe = f32[16,3]{1,0} conditional(%p, %p), branch_computations={%branch, %branch}
  %dot = f32[2,5]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %reduced = f32[2,5]{1,0} all-reduce(%dot), replica_groups=mesh['a'=4,'b'=2] {'a'}, to_apply=%add
  %halves = (f32[1,5], f32[1,5]) all-to-all(%p, %p), replica_groups={{0,1},{2,3},{4,5},{6,7}}
  ROOT %done = f32[2,5]{1,0} reduce-scatter(%reduced), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
}
"""


def test_every_kind_of_collective():
    found = [(each.kind, each.devices, each.bytes, each.times, each.always) for each in collectives(TEXT)]
    assert found == [
        ("collective-permute", 3, 24, 7, True),
        ("collective-permute", 3, 24, 0, True),
        ("all-gather", 8, 24 * 7, 1, False),
        ("all-gather", 8, 24 * 7, 1, False),
        ("all-reduce", 4, 40 * 2 * 3 // 4, 1, True),
        ("all-to-all", 2, 48 // 2, 1, True),
        ("reduce-scatter", 4, 40 * 3 // 4, 1, True),
    ]
    assert bytes_received(TEXT) == 24 * 7 + 60 + 24 + 30


def test_products():
    assert flops(TEXT) == 2 * 2 * 5 * 3
