"""The damaged inputs of `tests.fuzz`, some thousands of them; the nightly run has 1,000,000 (`make fuzz`)."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from google.protobuf.message import DecodeError

from tests import fuzz


@pytest.mark.parametrize("target", fuzz._targets(), ids=lambda target: target.name)
def test_the_good_inputs_are_taken(target: fuzz.Target) -> None:
    """Else damage would meet only the first check."""
    for sample in target.samples:
        target.read(sample, Random(1))


@pytest.mark.parametrize(
    "target", [target for target in fuzz._targets() if target.kind], ids=lambda target: target.name
)
def test_half_of_damaged_messages_are_messages(target: fuzz.Target) -> None:
    parsed, other = 0, 0
    for number in range(100):
        data = target.input(Random(number))
        other += data not in target.samples
        with suppress(DecodeError):
            target.kind.FromString(data)  # type: ignore[union-attr]
            parsed += 1
    assert parsed > 40
    assert other > 80


def test_damaged_inputs_are_taken_or_refused_with_a_typed_error() -> None:
    found = fuzz.run(range(5000), seed=0)
    assert not found.escaped, found.escaped[0][2]
    assert all(found.refused[name] for name in found.inputs)


def test_what_escapes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes, random: Random) -> None:
        raise RecursionError

    monkeypatch.setattr(fuzz, "_targets", lambda: [fuzz.Target("weak", 1, [b"x"], read)])
    assert [number for number, _, _ in fuzz.run(range(3), seed=0).escaped] == [0, 1, 2]
    assert fuzz.main(["--inputs", "3"]) == 1
