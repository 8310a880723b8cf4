"""Checks look at each part of a schema a few times, however its parts refer to each other."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.guides.exclusive_bounds import _too_close
from tandem.guides.schema_parts import combined_in, leaves_of, schemas_of

LIMITED = {"minimum": 1, "anyOf": [{"maximum": 9}]}


def size(schema):
    return len(list(schemas_of(schema)))


def test_many_references_make_one_group_of_all():
    referring = {"$ref": "#/$defs/a", "minimum": 1}
    schema = {"$defs": {"a": {}}, "properties": {f"p{n}": referring for n in range(1000)}}
    assert [len(group) for group in combined_in(schema)] == [size(schema)]


def test_groups_apart_hold_no_part_twice():
    inner = {"properties": {"a": LIMITED}, "anyOf": [LIMITED]}  # one group, with those in it
    schema = {"items": {"properties": {"a": inner, "b": LIMITED, "c": {"minimum": 5}}}}
    groups = list(combined_in(schema))
    assert sorted(map(len, groups)) == sorted([size(inner), size(LIMITED)])
    assert not any(part == {"minimum": 5} for group in groups for part in group)


def test_leaves_come_in_their_order_however_deep_they_are():
    value = ["last"]
    for level in range(10_000):
        value = {"a": level, "b": [], "c": [value]}
    assert list(leaves_of(value)) == [*reversed(range(10_000)), "last"]


NUMBERS = st.sets(st.integers(-20, 20).map(lambda n: n / 4))


@given(NUMBERS, NUMBERS)
def test_bounds_are_too_close_where_less_than_one_lies_between(low, high):
    close = {one for one in low for other in high if 0 < other - one < 1}
    found = _too_close(low, high)
    assert {one for one, _ in found} == close
    assert all(other in high and 0 < other - one < 1 for one, other in found)
