"""A rendezvous for each test, which must be in order and empty when the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowrt.rendezvous import LocalRendezvous

pytest.register_assert_rewrite("tests.contracts.check_rendezvous")


@pytest.fixture
def rendezvous() -> Iterator[LocalRendezvous]:
    local = LocalRendezvous()
    yield local
    local.check_empty()
