"""Two tasks on loopback, written once against TensorFlow 1's names: what it costs to run there and to get
tensors from there.

As a program, ``python cluster.py MODULE INDEX ADDRESS...``, it is one task of the cluster, until its standard
input ends: so it never outlives the process that timed it.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.timing import Outcome, median_s

MIB_64 = 16 << 20  # float32 elements
HOPS = 100
JOB = "worker"


def reserve_addresses(count: int, stack: ExitStack) -> list[str]:
    """Of the loopback; nobody else gets them until ``stack`` ends. The sockets stay bound without listening,
    with SO_REUSEADDR, which lets a gRPC server bind them too.
    """
    addresses = []
    for _ in range(count):
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        addresses.append(f"127.0.0.1:{held.getsockname()[1]}")
    return addresses


@contextmanager
def local_cluster(tf: Any, count: int) -> Iterator[str]:
    """``count`` tasks, the first of them here: the target of its master."""
    with ExitStack() as stack:
        addresses = reserve_addresses(count, stack)
        for index in range(1, count):
            command = [sys.executable, __file__, tf.__name__, str(index), *addresses]
            peer = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            )
            stack.callback(peer.kill)
        server = tf.train.Server({JOB: addresses}, job_name=JOB, task_index=0)
        if hasattr(server, "stop"):  # TensorFlow's cannot be stopped
            stack.callback(server.stop)
        yield server.target


def two_tasks(tf: Any) -> Outcome:
    """An empty step here and on the other task, a scalar and 64 MiB from there, and a hop of 100."""
    measures: dict[str, Callable[[], Any]] = {}
    with local_cluster(tf, 2) as target, tf.Graph().as_default():
        fetches = _fetches(tf)
        with tf.Session(target, config=_config(tf)) as session:
            session.run(tf.global_variables_initializer())
            for name, fetch in fetches.items():
                measures[name] = lambda fetch=fetch: session.run(fetch)
            seconds = {name: median_s(call) for name, call in measures.items()}
            value = float(session.run(fetches["hop"]))
    seconds["hop"] /= HOPS
    return Outcome(seconds, value)


def _fetches(tf: Any) -> dict[str, Any]:
    here, there = f"/job:{JOB}/task:0", f"/job:{JOB}/task:1"
    ones = tf.ones_initializer()
    with tf.device(there):
        large = tf.get_variable("large", shape=[MIB_64], initializer=ones, use_resource=True)
        scalar = tf.get_variable("scalar", shape=[], initializer=ones, use_resource=True)
        remote_noop = tf.no_op()
    with tf.device(here):
        received = [tf.group(tf.identity(variable.read_value())) for variable in (scalar, large)]
        local_noop = tf.no_op()
    z = scalar.read_value()
    for i in range(HOPS):
        with tf.device(there if i % 2 else here):
            z = z * 1.01
    names = ("local_noop", "remote_noop", "scalar", "64_mib", "hop")
    return dict(zip(names, (local_noop, remote_noop, *received, z), strict=True))


def _config(tf: Any) -> Any:
    """TensorFlow would fold the chain of hops."""
    if tf.__name__ == "flowrt":
        return None
    from tensorflow.core.protobuf import rewriter_config_pb2

    rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    return tf.ConfigProto(graph_options=tf.GraphOptions(rewrite_options=rewrites))


def cluster_grpc(tf: Any) -> Outcome:
    """By gRPC alone, as TensorFlow does it."""
    os.environ["FLOWRT_TRANSPORT"] = "grpc"
    return two_tasks(tf)


def cluster_same_host(tf: Any) -> Outcome:
    """By what flowrt chooses between processes of one host."""
    os.environ["FLOWRT_TRANSPORT"] = "auto"
    return two_tasks(tf)


CASES = {case.__name__: case for case in (cluster_grpc, cluster_same_host)}


def serve(module: str, index: int, addresses: Sequence[str]) -> None:
    """Be a task until standard input ends."""
    tf = importlib.import_module(module)
    server = tf.train.Server({JOB: list(addresses)}, job_name=JOB, task_index=index)  # noqa: F841 (it serves)
    sys.stdin.read()
    os._exit(0)  # TensorFlow's server cannot be stopped


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
