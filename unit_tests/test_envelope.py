"""A stored file is read as it was written, or refused: damage is never guessed at."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.protocol.envelope import FORMAT, seal, unseal

TEXT = st.text(alphabet='ab"\\{}\n\x00é\u2028\U0001f600', max_size=8)
BODIES = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
SEALED = seal("thing", {"epoch": 7, "handles": {"lake": {"actions": ["ä", 'say "x"\n']}}})
BODY = unseal("thing", SEALED, "there")


@settings(max_examples=50)
@given(BODIES)
def test_what_is_sealed_is_read_back(body: dict[str, object]) -> None:
    assert unseal("thing", seal("thing", body), "there") == body


def _value_or_error(data: bytes) -> object:
    try:
        return unseal("thing", data, "there/7")
    except (CorruptRecordError, NewerFormatError):
        return None


def test_truncation_at_any_byte_is_noticed() -> None:
    for length in range(len(SEALED)):
        value = _value_or_error(SEALED[:length])
        assert value is None or (length == len(SEALED) - 1 and value == BODY)  # only the last line end is not needed


def test_any_flipped_bit_is_noticed_or_changes_nothing() -> None:
    for index in range(len(SEALED)):
        for bit in range(8):
            damaged = bytearray(SEALED)
            damaged[index] ^= 1 << bit
            assert _value_or_error(bytes(damaged)) in (None, BODY)


@settings(max_examples=60)
@given(BODIES, st.data())
def test_damage_anywhere_is_noticed_whatever_is_stored(body: dict[str, object], data: st.DataObject) -> None:
    sealed = bytearray(seal("thing", body))
    for _ in range(data.draw(st.integers(1, 3))):
        sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(sealed)))
    assert _value_or_error(bytes(sealed[:cut])) in (None, body)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_one_of_our_errors(data: bytes) -> None:
    assert _value_or_error(data) is None


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b"null\n{}\n", b'"text"\n', b"[1]\n", b"\xff\xfe", b"9" * 10_000]
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match=r"there.*Restore it from a backup"):
        unseal("thing", data, "there")


def test_file_of_another_kind_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="holds a 'thing', expected a 'lineage'"):
        unseal("lineage", SEALED, "there")


def test_newer_format_is_refused_before_anything_is_made_of_it() -> None:
    head, rest = SEALED.split(b"\n", 1)
    newer = json.dumps({**json.loads(head), "format": FORMAT + 1}).encode() + b"\n" + rest
    with pytest.raises(NewerFormatError, match=f"format {FORMAT + 1}.*Upgrade"):
        unseal("thing", newer, "there")


def test_deeply_nested_body_is_refused_not_a_crash() -> None:
    import hashlib

    text = '{"a":' * 50_000 + "1" + "}" * 50_000
    head = {"lockstep": "thing", "format": 1, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    with pytest.raises(CorruptRecordError):
        unseal("thing", f"{json.dumps(head)}\n{text}\n".encode(), "there")
