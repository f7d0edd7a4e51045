"""A GPT's training step with Adam in layouts: the batch is sharded (dp), or columns and rows of layers (tp).

As a program, ``python layouts.py SIDE KIND RANK ADDRESSES...``, it is one process, in an interpreter that has
done nothing else: devices are fixed when they are first used. flowrt and JAX have all devices in one process,
PyTorch (DDP, DTensor) has a process each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks import inputs
from benchmarks.inputs import Gpt
from benchmarks.ranks import outcome_of_first
from benchmarks.timing import CHECKED_CALL, Outcome


class Kind(NamedTuple):
    """``axis`` is "dp" or "tp"."""

    axis: str
    devices: int


KINDS = {
    "one": Kind("dp", 1),
    "dp_2": Kind("dp", 2),
    "tp_2": Kind("tp", 2),
    "dp_4": Kind("dp", 4),
    "tp_4": Kind("tp", 4),
}

COLUMNS, ROWS = ("query", "key", "value", "up"), ("join", "down")
"""The weights of a layer of which tensor parallelism shards columns, and rows (Shoeybi et al. 2019)."""


def parameters() -> dict[str, Any]:
    """Those of `inputs.gpt_parameters`, with query, key and value apart."""
    found = {}
    for name, value in inputs.gpt_parameters().items():
        layer, _, own = name.partition(".")
        if own == "qkv":
            parts = np.split(value, 3, axis=1)
            found |= {f"{layer}.{part}": w for part, w in zip(("query", "key", "value"), parts, strict=True)}
        else:
            found[name] = value
    return found


def tokens() -> Any:
    return inputs.digits(Gpt.batch, Gpt.length + 1, below=Gpt.symbols)


# --- flowrt


def flowrt_step(kind: Kind, rank: int, addresses: Sequence[str]) -> Callable[[], Any]:
    import flowrt as tf

    mesh = tf.distribute.Mesh([(kind.axis, kind.devices)])
    strategy = tf.distribute.LayoutStrategy(mesh, batch="dp" if kind.axis == "dp" else None)
    if kind.axis == "tp":
        columns, rows = "|".join(COLUMNS), "|".join(ROWS)
        strategy.variable_layouts({rf"\d\.({columns})": [None, "tp"], rf"\d\.({rows})": ["tp", None]})
    with strategy.scope():
        given = tf.placeholder(tf.int64, [Gpt.batch, Gpt.length + 1])
        weights = {name: tf.Variable(value, name=name) for name, value in parameters().items()}
        loss = flowrt_loss(tf, weights, given)
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    threads = max(1, len(os.sched_getaffinity(0)) // kind.devices)
    config = tf.ConfigProto(device_count={"CPU": kind.devices}, intra_op_parallelism_threads=threads)
    session, feed = tf.Session(config=config), {given: tokens()}
    session.run(tf.global_variables_initializer())
    return lambda: session.run([train, loss], feed)[1]


def flowrt_loss(tf: Any, weights: dict[str, Any], given: Any) -> Any:
    h = tf.gather(weights["symbols"], given[:, :-1]) + weights["positions"]
    for layer in range(Gpt.layers):
        own = {name.removeprefix(f"{layer}."): value for name, value in weights.items()}

        def norm(x: Any, name: str, own: dict[str, Any] = own) -> Any:
            mean = tf.reduce_mean(x, -1, keepdims=True)
            variance = tf.reduce_mean(tf.squared_difference(x, mean), -1, keepdims=True)
            y = (x - mean) * tf.rsqrt(variance + 1e-5) * own[f"{name}.gain"] + own[f"{name}.bias"]
            return tf.reshape(y, [-1, Gpt.width])

        def heads(x: Any) -> Any:
            return tf.transpose(tf.reshape(x, [Gpt.batch, Gpt.length, Gpt.heads, Gpt.depth]), [0, 2, 1, 3])

        x = norm(h, "norm1")
        query, key, value = (heads(tf.matmul(x, own[name])) for name in ("query", "key", "value"))
        scores = tf.matmul(query, key, transpose_b=True) * Gpt.scale + inputs.causal_mask()
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        h += tf.reshape(tf.matmul(tf.reshape(mixed, [-1, Gpt.width]), own["join"]), h.shape)
        inner = tf.nn.gelu(tf.matmul(norm(h, "norm2"), own["up"]), approximate=True)
        h += tf.reshape(tf.matmul(inner, own["down"]), h.shape)
    logits = tf.matmul(tf.reshape(h, [-1, Gpt.width]), weights["output"])
    labels = tf.reshape(given[:, 1:], [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


# --- JAX


def jax_step(kind: Kind, rank: int, addresses: Sequence[str]) -> Callable[[], Any]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={kind.devices}"
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), (kind.axis,))

    def placed(name: str, value: Any) -> Any:
        own = name.partition(".")[2]
        spec = PartitionSpec()
        if kind.axis == "tp" and own in (*COLUMNS, *ROWS):
            spec = PartitionSpec(None, "tp") if own in COLUMNS else PartitionSpec("tp", None)
        return jax.device_put(value, NamedSharding(mesh, spec))

    given = PartitionSpec("dp") if kind.axis == "dp" else PartitionSpec()
    batch = jax.device_put(tokens(), NamedSharding(mesh, given))
    weights = {name: placed(name, value) for name, value in parameters().items()}
    zeros = {name: placed(name, np.zeros_like(value)) for name, value in parameters().items()}
    state = [weights, zeros, dict(zeros), np.float32(1)]
    update = jax.jit(_jax_update)

    def step() -> float:
        *state[:], loss = update(*state, batch)
        return float(loss)

    return step


def _jax_update(weights: Any, m: Any, v: Any, count: Any, batch: Any) -> Any:
    import jax
    import jax.numpy as jnp

    loss, gradients = jax.value_and_grad(_jax_loss)(weights, batch)
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, gradients)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, gradients)
    rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, a, b: w - rate * a / (jnp.sqrt(b) + 1e-8), weights, m, v)
    return weights, m, v, count + 1, loss


def _jax_loss(weights: Any, batch: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def norm(h: Any, name: str) -> Any:
        centred = h - h.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return centred * scale * weights[f"{name}.gain"] + weights[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(Gpt.batch, Gpt.length, Gpt.heads, Gpt.depth).transpose(0, 2, 1, 3)

    h = weights["symbols"][batch[:, :-1]] + weights["positions"]
    for layer in range(Gpt.layers):
        x = norm(h, f"{layer}.norm1")
        query, key, value = (heads(x @ weights[f"{layer}.{name}"]) for name in ("query", "key", "value"))
        scores = jax.nn.softmax(query @ key.transpose(0, 1, 3, 2) * Gpt.scale + inputs.causal_mask())
        h = h + (scores @ value).transpose(0, 2, 1, 3).reshape(h.shape) @ weights[f"{layer}.join"]
        inner = jax.nn.gelu(norm(h, f"{layer}.norm2") @ weights[f"{layer}.up"], approximate=True)
        h = h + inner @ weights[f"{layer}.down"]
    logits = jax.nn.log_softmax(h @ weights["output"])
    return -jnp.take_along_axis(logits, batch[:, 1:, None], -1).mean()


# --- PyTorch


def torch_model() -> Any:
    """The GPT as a module, with `parameters`; its blocks are its ``layers``."""
    import torch
    import torch.nn.functional as F

    values = {name: torch.tensor(value) for name, value in parameters().items()}

    class Layer(torch.nn.Module):
        def __init__(self, layer: int) -> None:
            super().__init__()
            for name in (*COLUMNS, *ROWS):
                weight = values[f"{layer}.{name}"]
                linear = torch.nn.Linear(*weight.shape, bias=False)
                linear.weight.data = weight.T.contiguous()
                setattr(self, name, linear)
            self.norm1, self.norm2 = torch.nn.LayerNorm(Gpt.width), torch.nn.LayerNorm(Gpt.width)

        def forward(self, h: Any) -> Any:
            x = self.norm1(h)
            rows, length = h.shape[:2]
            query, key, value = (
                getattr(self, name)(x).view(rows, length, -1, Gpt.depth).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            h = h + self.join(mixed.transpose(1, 2).reshape(rows, length, -1))
            return h + self.down(F.gelu(self.up(self.norm2(h)), approximate="tanh"))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.symbols, self.positions, self.output = (
                torch.nn.Parameter(values[name].clone()) for name in ("symbols", "positions", "output")
            )
            self.layers = torch.nn.ModuleList(Layer(i) for i in range(Gpt.layers))

        def forward(self, given: Any) -> Any:
            h = self.symbols[given] + self.positions
            for layer in self.layers:
                h = layer(h)
            return h @ self.output

    return Model()


def torch_step(kind: Kind, rank: int, addresses: Sequence[str]) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // kind.devices))
    model: Any = torch_model()
    given = torch.tensor(tokens())
    if kind.devices > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=kind.devices
        )
        if kind.axis == "dp":
            model = torch.nn.parallel.DistributedDataParallel(model)
            given = given.chunk(kind.devices)[rank]
        else:
            plan = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
            for layer in model.layers:
                parallelize_module(layer, init_device_mesh("cpu", (kind.devices,)), plan)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=False)

    def step() -> float:
        optimizer.zero_grad()
        logits = model(given[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, Gpt.symbols), given[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if kind.axis == "dp" and kind.devices > 1:
            dist.all_reduce(total)
            total /= kind.devices
        return float(total)

    return step


# --- processes

STEP_OF = {"flowrt": flowrt_step, "jax": jax_step, "torch": torch_step}
WARM_STEPS, STEPS = 12, 20
"""All processes have to make the same steps; flowrt's loops are compiled within the first 2 s."""


def run_process(side: str, name: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The seconds of the first step, the median of the later ones, and the loss of the third."""
    step = STEP_OF[side](KINDS[name], rank, addresses)
    losses, times = [], []
    for _ in range(WARM_STEPS + STEPS):
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
    seconds = {"first_step": times[0], "step": median(times[WARM_STEPS:])}
    return Outcome(seconds, float(losses[CHECKED_CALL - 1]))


def train(name: str, side: str) -> Outcome:
    """With the processes that the side needs; the outcome is the first's."""
    return outcome_of_first(__file__, side, name, KINDS[name].devices if side == "torch" else 1)


def layouts_gpt_one(side: str) -> Outcome:
    """On one device."""
    return train("one", side)


def layouts_gpt_dp_2(side: str) -> Outcome:
    """Two devices share the batch."""
    return train("dp_2", side)


def layouts_gpt_tp_2(side: str) -> Outcome:
    """Two devices share each layer."""
    return train("tp_2", side)


def layouts_gpt_dp_4(side: str) -> Outcome:
    """Four devices share the batch."""
    return train("dp_4", side)


def layouts_gpt_tp_4(side: str) -> Outcome:
    """Four devices share each layer."""
    return train("tp_4", side)


_ALL = (layouts_gpt_one, layouts_gpt_dp_2, layouts_gpt_tp_2, layouts_gpt_dp_4, layouts_gpt_tp_4)
CASES: dict[str, Callable[[str], Outcome]] = {case.__name__: case for case in _ALL}

if __name__ == "__main__":
    print(json.dumps(run_process(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
