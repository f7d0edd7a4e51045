"""`run` and `session`: each test that takes one is run in every way in which a session can run a graph."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control_flow.ways import WAYS, Run, open_session, runner


@pytest.fixture(params=WAYS)
def run(request: Any, monkeypatch: Any) -> Run:
    return runner(request.param, monkeypatch)


@pytest.fixture(params=WAYS)
def session(request: Any, monkeypatch: Any) -> Any:
    with open_session(request.param, monkeypatch) as session:
        yield session
