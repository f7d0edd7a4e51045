"""Values and gradients of every op sample against TensorFlow: ``python -m benchmarks.gradients --peers
ENVIRONMENT``.

flowrt writes each sample as a GraphDef with feeds, values and gradients; TensorFlow imports the graph, runs
it and differentiates it with its own rules. The two meet in files only. Prints one line a sample that
differs, and a summary by outcome; exits with 1 if a value or gradient differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-6
"""Relative to the largest element: float64 samples agree to 1e-12 where both sides compute in float64;
TensorFlow rounds some attributes (alpha, epsilon) to float32.
"""

KNOWN = {
    "Svd": "singular vectors are unique up to their sign",
    "SelfAdjointEigV2": "eigenvectors are unique up to their sign",
    "EluGrad": "TensorFlow takes a NaN output for a positive one",
    "SoftmaxCrossEntropyWithLogits": "TensorFlow drops the labels' gradient through the second output",
    "FusedBatchNormV3": "reserved outputs of inference mode are empty in one and a scalar in the other",
    "FusedBatchNormGradV3": "the same",
    "DepthwiseConv2dNativeBackpropInput": "TensorFlow's CPU kernel ignores dilations",
    "DepthwiseConv2dNativeBackpropFilter": "the same",
}
"""Differences that were looked into, by op; each with its reason."""


def write_samples(folder: Path) -> int:
    """One folder a sample: ``graph.pb``, ``arrays.npz`` (feeds x0…, values y0…, gradients g0…) and
    ``names.json``.
    """
    from flowrt.graph.op_def import BY_EXECUTOR, Effect, registered_ops

    count = 0
    for op in registered_ops().values():
        if op.kernel is BY_EXECUTOR or op.effect is not Effect.PURE or op.name.startswith("_"):
            continue
        for position, sample in enumerate(op.samples(np.random.default_rng(0))):
            arrays = [np.asarray(v) for v in _flat(op, sample)]
            if any(a.dtype == object for a in arrays):
                continue
            _write_sample(folder / f"{count:04d}-{op.name}-{position}", op, sample)
            count += 1
    return count


def _flat(op: Any, sample: Any) -> list[Any]:
    found: list[Any] = []
    for argument, value in zip(op.inputs, sample.inputs, strict=True):
        found += list(value) if argument.is_list else [value]
    return found


def _write_sample(folder: Path, op: Any, sample: Any) -> None:
    import flowrt as tf

    with tf.Graph() as graph:
        arguments: list[Any] = []
        feeds: list[tuple[Any, Any]] = []
        for argument, value in zip(op.inputs, sample.inputs, strict=True):
            tensors = []
            for item in value if argument.is_list else (value,):
                array = np.asarray(item)
                if argument.on_host:
                    tensors.append(tf.constant(array))
                else:
                    tensors.append(tf.placeholder(array.dtype, array.shape))
                    feeds.append((tensors[-1], array))
            arguments.append(tensors if argument.is_list else tensors[0])
        result = op(*arguments, **sample.attrs)
        outputs = result if isinstance(result, list) else list(getattr(result, "outputs", [result]))
        if not outputs or any(y.dtype == tf.string for y in outputs):
            return
        definition = graph.as_graph_def()
        smooth = sample.differentiable and [t for t, a in feeds if a.dtype == np.float64 and a.size]
        ys = [y for y in outputs if y.dtype == tf.float64]
        static = [y.shape.as_list() for y in ys if y.shape.is_fully_defined()]
        seeds = [tf.constant(np.random.default_rng(i).standard_normal(s)) for i, s in enumerate(static)]
        gradients: list[Any] = []
        if smooth and ys and len(seeds) == len(ys):
            try:
                gradients = tf.gradients(ys, smooth, seeds)
            except tf.errors.UnimplementedError:
                smooth = []
        with tf.Session() as session:
            wanted = [tf.convert_to_tensor(g) for g in gradients if g is not None]
            values, slopes = session.run([outputs, wanted], dict(feeds))
    found = iter(slopes)
    arrays = {f"x{i}": a for i, (_, a) in enumerate(feeds)} | {
        f"y{i}": np.asarray(v) for i, v in enumerate(values)
    }
    names: dict[str, Any] = {
        "feeds": [t.name for t, _ in feeds],
        "outputs": [y.name for y in outputs],
        "gradients": {},
    }
    for x, gradient in zip(smooth or [], gradients, strict=False):
        if gradient is not None:
            arrays[f"g{len(names['gradients'])}"] = np.asarray(next(found))
            names["gradients"][x.name] = len(names["gradients"])
    names["ys"] = [y.name for y in ys]
    folder.mkdir()
    (folder / "graph.pb").write_bytes(definition.SerializeToString())
    (folder / "names.json").write_text(json.dumps(names))
    plain = {k: v.astype(np.float32) if v.dtype.name == "bfloat16" else v for k, v in arrays.items()}
    np.savez(folder / "arrays.npz", **plain)


def check_samples(folder: Path) -> int:
    """In TensorFlow's environment: run, differentiate and compare every sample."""
    import os

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    outcomes: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        outcome = _check_sample(tf, path)
        reason = KNOWN.get(path.name.split("-")[1])
        if reason is not None and outcome.startswith("DIFFERENT"):
            outcome = f"known difference: {reason}"
        outcomes[outcome.partition(":")[0]] += 1
        if not outcome.startswith("same"):
            print(f"{path.name[5:]}: {outcome[:200]}")
    print(", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))
    return 1 if outcomes["DIFFERENT value"] or outcomes["DIFFERENT gradient"] else 0


def _check_sample(tf: Any, path: Path) -> str:
    names = json.loads((path / "names.json").read_text())
    arrays = np.load(path / "arrays.npz", allow_pickle=False)
    definition = tf.GraphDef.FromString((path / "graph.pb").read_bytes())
    with tf.Graph().as_default() as graph:
        try:
            tf.import_graph_def(definition, name="")
        except Exception as error:  # noqa: BLE001  (an op or a dtype that TensorFlow does not have)
            return f"not in TensorFlow: {' '.join(str(error).split())}"
        feed = {name: arrays[f"x{i}"] for i, name in enumerate(names["feeds"])}
        outputs = [graph.get_tensor_by_name(n) for n in names["outputs"]]
        try:
            with tf.Session() as session:
                values = session.run(outputs, feed)
        except Exception as error:  # noqa: BLE001
            return f"not run by TensorFlow: {' '.join(str(error).split())}"
        for i, value in enumerate(values):
            if not _close(np.asarray(value), arrays[f"y{i}"]):
                ours = _short(arrays[f"y{i}"])
                return f"DIFFERENT value: output {i}: TensorFlow {_short(value)}, flowrt {ours}"
        return _check_gradients(tf, graph, names, arrays, feed) if names["gradients"] else "same value"


def _check_gradients(tf: Any, graph: Any, names: Any, arrays: Any, feed: Any) -> str:
    xs = [graph.get_tensor_by_name(n) for n in names["gradients"]]
    ys = [graph.get_tensor_by_name(n) for n in names["ys"]]
    seeds = [np.random.default_rng(i).standard_normal(y.shape.as_list()) for i, y in enumerate(ys)]
    try:
        found = tf.gradients(ys, xs, [tf.constant(s) for s in seeds])
        with tf.Session(graph=graph) as session:
            wanted = [tf.convert_to_tensor(g) for g in found if g is not None]
            slopes = iter(session.run(wanted, feed))
    except Exception as error:  # noqa: BLE001
        return f"no gradient in TensorFlow: {' '.join(str(error).split())}"
    for i, gradient in enumerate(found):
        if gradient is None:
            return "no gradient in TensorFlow: None"
        value = np.asarray(next(slopes))
        if not _close(value, arrays[f"g{i}"]):
            return (
                f"DIFFERENT gradient: of x{i}: TensorFlow {_short(value)}, flowrt {_short(arrays[f'g{i}'])}"
            )
    return "same value and gradient"


def _close(theirs: np.ndarray, ours: np.ndarray) -> bool:
    if theirs.shape != ours.shape:
        return False
    if theirs.dtype == object or theirs.dtype.kind in "iub":
        return bool(np.array_equal(theirs, ours))
    exact = theirs.dtype in (np.float64, np.complex128)
    with np.errstate(all="ignore"):
        kind = np.complex128 if theirs.dtype.kind == "c" else np.float64
        a, b = theirs.astype(kind), ours.astype(kind)
        finite = np.abs(a[np.isfinite(a)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        return bool(np.allclose(a, b, rtol=0, atol=scale * (TOLERANCE if exact else 2e-2), equal_nan=True))


def _short(value: Any) -> str:
    return " ".join(np.array2string(np.asarray(value).ravel()[:4], precision=6).split())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients", description=__doc__)
    parser.add_argument(
        "--peers", type=Path, help="an environment (folder or interpreter) that has TensorFlow"
    )
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check is not None:
        return check_samples(arguments.check)
    if arguments.peers is None:
        parser.error("--peers is needed: an environment that has TensorFlow")
    interpreter = arguments.peers / "bin" / "python" if arguments.peers.is_dir() else arguments.peers
    with tempfile.TemporaryDirectory() as folder:
        count = write_samples(Path(folder))
        print(f"{count} samples of flowrt's ops; checking them with TensorFlow", flush=True)
        command = [str(interpreter), str(Path(__file__).resolve()), "--check", folder]
        return subprocess.run(command, check=False, timeout=1800).returncode


if __name__ == "__main__":
    sys.exit(main())
