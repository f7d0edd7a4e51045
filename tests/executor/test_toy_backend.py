"""A toy kind of device: NumPy on the host, with a matrix product of its own, written in a page."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import device_kinds
from flowrt.device.device import Device
from flowrt.device.device_kinds import DeviceKind, register_kind
from flowrt.device.host.host import HostExecutor
from flowrt.device.local_devices import DeviceRequest, specs_of
from flowrt.executor.kernels.backend import Backend
from flowrt.executor.kernels.device_backends import BACKENDS
from flowrt.graph.node import Node, TensorSpec
from tests.each import nightly

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


# --- the toy


def open_toys(request: DeviceRequest, job: str, task: int) -> list[Device]:
    specs = specs_of("TOY", request.counts.get("TOY", 0), job, task)
    return [Device(spec, HostExecutor(spec.to_string())) for spec in specs]


class ToyBackend(Backend):
    computed: list[str]

    def kernel(self, node: Node, specs: Sequence[TensorSpec], has_loops: bool) -> Callable[..., Any] | None:
        if node.op.name != "MatMul":
            return None
        self.computed.append(node.name)
        return product


def product(xp: Any, a: Any, b: Any, transpose_a: bool, transpose_b: bool, out: Any = None, **_: Any) -> Any:
    letters = ("ki" if transpose_a else "ik") + "," + ("jk" if transpose_b else "kj") + "->ij"
    return xp.einsum(letters, a, b, out=out)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the products that toys compute."""
    monkeypatch.setattr(ToyBackend, "computed", [], raising=False)
    monkeypatch.setitem(BACKENDS, "TOY", ToyBackend)
    before = dict(device_kinds._KINDS)
    register_kind(DeviceKind("TOY", open_toys))
    yield ToyBackend.computed
    device_kinds._KINDS.clear()
    device_kinds._KINDS.update(before)


# --- what it runs


def digits_mlp(monkeypatch: pytest.MonkeyPatch, folder: Path, device: str) -> float:
    """The accuracy of the example, with its layers on ``device``."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    text = (EXAMPLES / "digits_mlp.py").read_text("utf-8")
    text = text.replace("/cpu:", f"/device:{device}:").replace('{"CPU": devices}', f'{{"{device}": devices}}')
    (folder / "digits_mlp.py").write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("digits_mlp", folder / "digits_mlp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tf.Graph().as_default():
        return float(module.main(1, 200))


@pytest.mark.parametrize("jit", nightly(["eager", "off"], 1))
def test_a_toy_trains_digits_as_the_cpu_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, computed: list[str], jit: str
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", jit)
    accuracy = digits_mlp(monkeypatch, tmp_path, "TOY")
    assert any("gradients" in name for name in computed)
    assert accuracy == pytest.approx(digits_mlp(monkeypatch, tmp_path, "CPU"), abs=0.01)
    assert accuracy > 0.9
    sys.modules.pop("digits", None)


def test_a_toy_is_a_device_as_any_other(computed: list[str]) -> None:
    a, b = np.eye(3), np.arange(9.0).reshape(3, 3)
    with tf.Graph().as_default(), tf.device("/device:TOY:1"):
        y = tf.matmul(a, b)
    with tf.Session(graph=y.graph, config=tf.ConfigProto(device_count={"TOY": 2})) as session:
        assert np.array_equal(session.run(y), b)
        assert [d.name for d in session.list_devices()][-1].endswith("/device:TOY:1")
    with (
        tf.Session(graph=y.graph) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"device_count=\{'TOY': 2\}"),
    ):
        session.run(y)
    with pytest.raises(tf.errors.InvalidArgumentError, match="CPU, GPU, NULL and TOY; got ABACUS"):
        tf.Session(graph=y.graph, config=tf.ConfigProto(device_count={"ABACUS": 2}))
