"""The cases on this machine's first GPU.

``python -m benchmarks.gpu flowrt|torch|torch_compile|jax [case ...]`` runs the cases of one side, in one
process, and prints a line of JSON for each. All of a case runs on the GPU; what the timed call returns is
fetched, so the time includes the wait for the device. No side rounds products of float32 to TensorFloat-32.
flowrt feeds its batches from host memory in every step, as its users do; the peers' stay on the GPU.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks import inputs, timing

COMMON = (
    "chain_1000_small_ops", "mlp_adam", "lenet_sgd", "gpt_adam", "gelu_sum_16m", "softmax_short_rows",
    "matmul_2048", "matmul_8192", "gpt_1024", "gpt_1024_bfloat16",
)  # fmt: skip
ONLY_OURS = ("noop_run", "add_feed_fetch", "lstm_while_train")

Cases = Mapping[str, Callable[[], Any]]


def _flowrt() -> Cases:
    import flowrt
    from benchmarks import cases

    found = {name: partial(case, flowrt) for name, case in cases.CASES.items()}
    narrow = partial(cases.gpt_adam, flowrt, flowrt.distribute.Precision("bfloat16"))
    return {**found, "gpt_bfloat16": narrow}


def _torch(is_compiled: bool) -> Cases:
    import torch

    torch.set_default_device("cuda")
    torch.backends.cudnn.allow_tf32 = False
    from benchmarks import peers_torch

    wrap = torch.compile if is_compiled else peers_torch.eager
    found = {name: partial(case, wrap) for name, case in peers_torch.CASES.items()}
    narrow = torch.autocast("cuda", torch.bfloat16)
    return {**found, "gpt_bfloat16": partial(peers_torch.gpt_adam, lambda loss: wrap(narrow(loss)))}


def _jax() -> Cases:
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    from benchmarks import peers_jax

    return peers_jax.CASES


SIDES: dict[str, Callable[[], Cases]] = {
    "flowrt": _flowrt,
    "torch": partial(_torch, False),
    "torch_compile": partial(_torch, True),
    "jax": _jax,
}


class LargeGpt(inputs.Gpt):
    """16 x 512 tokens, 8 layers of 1,024 with 16 heads."""

    batch, length, width, layers, heads = 16, 512, 1024, 8, 16


LARGE = {"gpt_1024": "gpt_adam", "gpt_1024_bfloat16": "gpt_bfloat16"}
"""The cases of `LargeGpt`."""


def run(cases: Cases, name: str) -> Any:
    """The outcome of one case; ``matmul_8192`` is ``matmul_2048`` with larger matrices."""
    if name == "matmul_8192":
        inputs.SQUARE, name = 8192, "matmul_2048"
    elif name in LARGE:
        for key, value in vars(LargeGpt).items():
            if not key.startswith("_"):
                setattr(inputs.Gpt, key, value)
    return cases[LARGE.get(name, name)]()


def main(side: str, *names: str) -> None:
    cases = SIDES[side]()
    timing.WARM_S = timing.TIMED_S = 0.4
    for name in names or (*COMMON, *(ONLY_OURS if side == "flowrt" else ())):
        try:
            answer = run(cases, name)._asdict()
        except Exception:  # noqa: BLE001 (the other cases are worth running)
            answer = {"error": traceback.format_exc()}
        print(json.dumps({"side": side, "case": name} | answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
