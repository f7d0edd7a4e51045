"""Keys: one spelling each, written by `create_key` and read back by `parse_key`; anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.rendezvous import ParsedKey, create_key, parse_key

SRC = "/job:worker/replica:0/task:1/device:GPU:0"
DST = "/job:ps/replica:2/task:3/device:CPU:4"
TEXT = f"{SRC};00000000deadbeef;{DST};w/read:0;18446744073709551615:7"
PARSED = ParsedKey(SRC, 0xDEADBEEF, DST, "w/read:0", 2**64 - 1, 7, TEXT)

devices = st.builds(
    "/job:{}/replica:{}/task:{}/device:{}:{}".format,
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True),
    st.integers(0, 9999),
    st.integers(0, 9999),
    st.from_regex(r"[A-Z][A-Z0-9_]{0,4}", fullmatch=True),
    st.integers(0, 99),
)
ids = st.one_of(st.just(0), st.integers(0, 2**64 - 1))
edges = st.text(st.characters(exclude_characters=";"), min_size=1)
parts = st.tuples(devices, ids, devices, edges, ids, ids)


def test_a_key_is_written_as_tensorflow_writes_it() -> None:
    assert create_key(SRC, 0xDEADBEEF, DST, "w/read:0", 2**64 - 1, 7) == TEXT


def test_a_key_is_read_into_its_parts() -> None:
    key = parse_key(TEXT)
    assert key == PARSED
    assert str(key) == TEXT


@given(parts)
def test_what_is_written_reads_back(given_parts: tuple[str, int, str, str, int, int]) -> None:
    text = create_key(*given_parts)
    assert parse_key(text) == ParsedKey(*given_parts, text)


def test_create_gives_every_spelling_of_a_device_its_one_name() -> None:
    old = "/job:worker/replica:0/task:1/gpu:0"
    assert create_key(old, 1, DST, "x:0", 0, 0) == create_key(SRC, 1, DST, "x:0", 0, 0)


@pytest.mark.parametrize(
    ("part", "bad", "expected"),
    [
        (0, "/device:CPU:0", "expected a full device name"),
        (0, "/job:a/replica:0/task:0/device:CPU:*", "expected a full device name"),
        (0, "", "expected a full device name"),
        (2, "/job:a/task:0/device:CPU:0", "expected a full device name"),
        (2, "CPU", "expected a full device name"),
        (1, -1, r"expected src_incarnation in \[0, 2\*\*64\); got -1"),
        (1, 2**64, "expected src_incarnation in"),
        (3, "", "expected an edge name"),
        (3, "a;b", "expected an edge name"),
        (4, -1, "expected frame_id in"),
        (5, 2**64, "expected iteration in"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(part: int, bad: object, expected: str) -> None:
    parts: list[object] = [SRC, 1, DST, "x:0", 0, 0]
    parts[part] = bad
    with pytest.raises(InvalidArgumentError, match=expected):
        create_key(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (TEXT, "", "expected 5 non-empty parts"),
        (";18446744073709551615:7", "", "expected 5 non-empty parts"),
        ("w/read:0", "", "expected 5 non-empty parts"),
        ("w/read:0", "w;read:0", "expected 5 non-empty parts"),
        ("00000000deadbeef", "deadbeef", "16 lower-case hex digits; got 'deadbeef'"),
        ("00000000deadbeef", "00000000DEADBEEF", "16 lower-case hex digits"),
        ("00000000deadbeef", "0x000000deadbeef", "16 lower-case hex digits"),
        ("00000000deadbeef", "00000000deadbeef\n", "16 lower-case hex digits"),
        ("18446744073709551615:7", "7", "two decimal numbers; got '7'"),
        ("18446744073709551615:7", "1:2:3", "two decimal numbers"),
        ("18446744073709551615:7", "-1:7", "two decimal numbers"),
        ("18446744073709551615:7", "0:7\n", "two decimal numbers"),
        ("18446744073709551615:7", "\u0661:7", "two decimal numbers"),
        ("18446744073709551615:7", "9" * 5000 + ":7", "two decimal numbers"),
        ("18446744073709551615:7", "18446744073709551616:7", "expected frame_id in"),
        ("18446744073709551615:7", "0:07", "expected the canonical spelling .*;0:7'"),
        (SRC, "/device:GPU:0", "expected a full device name"),
        (SRC, "/job:worker/replica:0/task:1/gpu:0", "expected the canonical spelling"),
        (SRC, "/job:worker/replica:0/task:01/device:GPU:0", "expected the canonical spelling"),
        (SRC, "/job:worker/replica:0/task:1/device:gpu:0", "expected the canonical spelling"),
        (DST, "nowhere", "expected parts of the form"),
    ],
)
def test_a_text_that_is_no_key_is_refused(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidArgumentError, match=expected):
        parse_key(TEXT.replace(old, new))


def _reads_back_or_is_refused(text: str) -> None:
    try:
        key = parse_key(text)
    except InvalidArgumentError:
        return
    again = create_key(
        key.src_device, key.src_incarnation, key.dst_device, key.edge_name, key.frame_id, key.iteration
    )
    assert again == text == key.text


@given(st.text())
def test_any_text_reads_back_or_is_refused(text: str) -> None:
    _reads_back_or_is_refused(text)


near_devices = st.sampled_from(
    [
        SRC,
        DST,
        SRC.lower(),
        "/cpu:0",
        "/job:a/replica:0/task:0/cpu:1",
        "/job:a/replica:*/task:0/device:CPU:1",
        SRC + "/",
    ]
)
near_hex = st.text("0123456789abcdefA", min_size=15, max_size=17)
near_frame = st.text("0123456789:\u0661 _", max_size=24)


@given(st.tuples(near_devices, near_hex, near_devices, st.text(), near_frame).map(";".join))
@example(TEXT)
def test_a_text_that_is_nearly_a_key_reads_back_or_is_refused(text: str) -> None:
    _reads_back_or_is_refused(text)


@given(parts.map(lambda p: create_key(*p)), st.data())
def test_a_key_with_one_character_changed_reads_back_or_is_refused(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    _reads_back_or_is_refused(text[:at] + data.draw(st.text("0aA;:/*", max_size=2)) + text[at + 1 :])
