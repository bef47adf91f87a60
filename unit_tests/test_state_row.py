"""A row is a tuple with names, and nothing a column may be called gets in the way."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.state.row import Row, row_type


def test_field_is_reached_by_attribute_name_and_position() -> None:
    row = row_type(["account", "amount"])._make(("a", 7))
    assert (row.account, row["account"], row[0]) == ("a", "a", "a")
    assert (row.amount, row["amount"], row[-1]) == (7, 7, 7)
    assert row[0:2] == ("a", 7)


def test_row_is_the_tuple_of_its_values() -> None:
    row = row_type(["a", "b"])._make([1, "x"])
    assert row == (1, "x")
    assert hash(row) == hash((1, "x"))
    assert [*row] == [1, "x"]
    assert isinstance(row, tuple)
    assert isinstance(row, Row)
    assert len(row) == 2


def test_repr_shows_names_and_values() -> None:
    assert repr(row_type(["a", "b"])._make((1, "x"))) == "Row(a=1, b='x')"
    assert repr(row_type(["a b"])._make((1,))) == "Row(`a b`=1)"


def test_same_names_give_the_same_class() -> None:
    assert row_type(["a", "b"]) is row_type(("a", "b"))
    assert row_type(["a", "b"]) is not row_type(["b", "a"])


@pytest.mark.parametrize("name", ["count", "index", "_asdict", "_1", "mro", "self", "cls", "names", "values"])
def test_column_may_be_named_like_a_method_of_tuple(name: str) -> None:
    row = row_type(["first", name])._make((1, 2))
    assert getattr(row, name) == 2
    assert row[name] == 2


@pytest.mark.parametrize(
    "name",
    ["a b", "", "1", "class", "asDict", "_fields", "_make", "_positions", "__class__", "__len__", "__slots__", "é-"],
)
def test_unusual_name_is_reached_by_name_and_breaks_nothing(name: str) -> None:
    row = row_type(["first", name])._make((1, 2))
    assert row[name] == 2
    assert row.asDict() == {"first": 1, name: 2}
    assert isinstance(row, Row)
    assert pickle.loads(pickle.dumps(row)) == row


def test_keyword_named_field_is_reached_by_getattr() -> None:
    assert getattr(row_type(["class"])._make((1,)), "class") == 1


def test_missing_field_is_named_with_those_that_exist() -> None:
    row = row_type(["account", "amount"])._make(("a", 7))
    with pytest.raises(AttributeError, match=r"no field 'amuont' in Row\(account, amount\)"):
        _ = row.amuont
    with pytest.raises(KeyError, match="no field 'amuont'"):
        _ = row["amuont"]
    with pytest.raises(IndexError):
        _ = row[2]
    assert not hasattr(row, "other")


def test_row_cannot_be_changed() -> None:
    row = row_type(["a"])._make((1,))
    with pytest.raises(AttributeError):
        row.a = 2
    with pytest.raises(AttributeError):
        row.b = 2


def test_as_dict_goes_into_rows_inside_only_when_asked() -> None:
    inner = Row(x=1)
    row = Row(a=inner, b=[inner], c={"k": inner}, d=2)
    assert row.asDict()["a"] is inner
    assert row.asDict(recursive=True) == {"a": {"x": 1}, "b": [{"x": 1}], "c": {"k": {"x": 1}}, "d": 2}
    assert type(row.asDict(recursive=True)["a"]) is dict


def test_row_is_made_by_hand_from_names_or_values() -> None:
    kind = row_type(["a", "b"])
    assert type(Row(a=1, b="x")) is kind
    assert kind(1, "x") == kind(b="x", a=1) == kind(1, b="x") == Row(a=1, b="x")


@pytest.mark.parametrize(
    "values, names", [((1,), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1,), {"c": 2}), ((), {"a": 1})]
)
def test_row_with_missing_or_unknown_values_is_refused(values: tuple[int, ...], names: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Row\(a, b\)"):
        row_type(["a", "b"])(*values, **names)


def test_row_without_names_is_refused() -> None:
    with pytest.raises(TypeError, match="by name"):
        Row(1, 2)


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        row_type(["a", "a"])


@given(st.lists(st.text(max_size=5), unique=True, max_size=5))
def test_row_survives_pickle_and_copies(names: list[str]) -> None:
    row = row_type(names)._make(range(len(names)))
    for again in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert again == row
        assert type(again) is type(row)
    assert row.asDict() == {name: i for i, name in enumerate(names)}


def test_class_of_a_row_does_not_depend_on_when_garbage_is_collected() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        kinds = [row_type([f"collected{i}", "b"]) for i in range(50)]
    finally:
        gc.set_threshold(*thresholds)
    assert [kind(1, 2).b for kind in kinds] == [2] * 50
