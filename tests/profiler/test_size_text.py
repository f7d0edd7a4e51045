"""Numbers of bytes as text."""

from __future__ import annotations

import pytest

from flowrt.profiler.text_table import size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"), (0.5, "0.5 B"), (999.7, "1000 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"),
        (1010 << 10, "1010 KiB"), (3 << 30, "3 GiB"), (5 << 40, "5 TiB"), (5 << 50, "5120 TiB"),
        (-2048, "-2 KiB"),
    ],
)  # fmt: skip
def test_three_digits_or_all_before_the_point(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text
