"""`GraphModel`: a graph with named inputs and outputs, and a session that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.construction.graph import Graph, Tensor


@final
class GraphModel:
    """``inputs`` and ``outputs`` are tensors of ``session``'s graph, by the names that callers use.

    >>> model.run({"x": np.zeros((1, 3), np.float32)})["y"].shape
    (1, 2)
    """

    def __init__(self, session: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        self.session, self.inputs, self.outputs = session, dict(inputs), dict(outputs)

    @property
    def graph(self) -> Graph:
        graph: Graph = self.session.graph
        return graph

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The outputs by name. ``inputs`` are arrays by name, or in order. Raises `InvalidArgumentError` for
        other inputs than the model has, and the errors of ``Session.run``.
        """
        if not isinstance(inputs, Mapping):
            if len(inputs) > len(self.inputs):
                expected = f"expected at most {len(self.inputs)} inputs ({', '.join(self.inputs)})"
                raise InvalidArgumentError(f"{expected}; got {len(inputs)}")
            inputs = dict(zip(self.inputs, inputs, strict=False))
        for name in inputs:
            if name not in self.inputs:
                expected = f"expected inputs {', '.join(self.inputs) or 'none'}"
                raise InvalidArgumentError(f"{expected}; got {name!r}.{nearest(name, self.inputs)}")
        missing = [n for n, t in self.inputs.items() if n not in inputs and t.op.type == "Placeholder"]
        if missing:
            raise InvalidArgumentError(f"expected values of all inputs; got none of {', '.join(missing)}")
        found: dict[str, Any] = self.session.run(
            self.outputs, {self.inputs[name]: value for name, value in inputs.items()}
        )
        return found

    def __call__(self, *in_order: Any, **inputs: Any) -> dict[str, Any]:
        """The outputs for inputs by name: `run`. Raises `InvalidArgumentError` for inputs ``in_order``."""
        if in_order:
            named = ", ".join(f"{name}=..." for name in self.inputs)
            raise InvalidArgumentError(f"expected inputs by name ({named}); got {len(in_order)} in order")
        return self.run(inputs)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> GraphModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<flowrt.GraphModel {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"
