"""One side's end of the benchmark: ``python worker.py SIDE`` prints what is there, ``python worker.py SIDE
CASE`` runs a case. Both print one line of JSON last.

Runs as a script by the side's own interpreter, so it imports nothing of flowrt unless flowrt is the side.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # everybody on the CPU
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[0] = str(Path(__file__).resolve().parent.parent)


class Loaded(NamedTuple):
    """``not_there`` is the error by which this side says that it has no such operation."""

    version: str
    cases: Mapping[str, Callable[[], Any]]
    not_there: type[Exception] = NotImplementedError


def _flowrt() -> Loaded:
    from benchmarks import (
        cases,
        checkpoints,
        cluster,
        collectives,
        data_parallel,
        fully_sharded,
        layouts,
        models,
        pipelines,
        redistribution,
    )

    flowrt = importlib.import_module("flowrt")
    all_cases = {**cases.CASES, **models.CASES, **cluster.CASES}
    bound = {name: partial(case, flowrt) for name, case in all_cases.items()}
    modules = (
        checkpoints, collectives, data_parallel, layouts, fully_sharded, pipelines, redistribution
    )  # fmt: skip
    bound |= {name: partial(case, "flowrt") for module in modules for name, case in module.CASES.items()}
    return Loaded(flowrt.__version__, bound, flowrt.errors.UnimplementedError)


def _tensorflow() -> Loaded:
    from benchmarks import cases, cluster, data_parallel, models

    tf = importlib.import_module("tensorflow.compat.v1")
    tf.disable_v2_behavior()
    all_cases = {**cases.CASES, **models.CASES, **cluster.CASES}
    bound = {name: partial(case, tf) for name, case in all_cases.items()}
    bound |= {name: partial(case, "tensorflow") for name, case in data_parallel.CASES.items()}
    return Loaded(tf.__version__, bound)


def _torch(is_compiled: bool) -> Loaded:
    import torch

    from benchmarks import (
        checkpoints,
        collectives,
        data_parallel,
        fully_sharded,
        layouts,
        peers_torch,
        pipelines,
        redistribution,
    )

    wrap = torch.compile if is_compiled else peers_torch.eager
    cases = {name: partial(case, wrap) for name, case in peers_torch.CASES.items()}
    if not is_compiled:
        modules = checkpoints, collectives, layouts, fully_sharded, pipelines, redistribution
        of_side = [module.CASES for module in modules]
        of_side.append(data_parallel.TORCH_CASES)
        cases |= {name: partial(case, "torch") for found in of_side for name, case in found.items()}
    return Loaded(torch.__version__, cases)


def _jax() -> Loaded:
    import jax

    from benchmarks import layouts, peers_jax

    of_side = {name: partial(case, "jax") for name, case in layouts.CASES.items()}
    return Loaded(jax.__version__, {**peers_jax.CASES, **of_side})


SIDES: dict[str, Callable[[], Loaded]] = {
    "flowrt": _flowrt,
    "tensorflow": _tensorflow,
    "torch": partial(_torch, False),
    "torch_compile": partial(_torch, True),
    "jax": _jax,
}


def main(name: str, case: str | None = None) -> None:
    side = SIDES[name]()
    if case is None:
        answer: dict[str, Any] = {"version": side.version, "cases": list(side.cases)}
    else:
        try:
            answer = side.cases[case]()._asdict()
        except side.not_there as error:
            answer = {"not_there": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
