"""`MultiWorkerMirroredStrategy` between real processes: `multi_worker_script.py` on each of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.strategies.values.buckets import buckets
from tests.distribute.strategies.standing_workers import Answers, StandingWorkers
from tests.forks import ForkedScript

SCRIPT = Path(__file__).with_name("multi_worker_script.py")


@contextmanager
def workers(what: str, count: int, scripts: list[Path] | None = None) -> Iterator[list[ForkedScript]]:
    """``count`` processes that do ``what``; none is left afterwards."""
    with ReservedPorts(count) as reserved, ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        yield [
            stack.enter_context(ForkedScript(script, what, str(task), *addresses))
            for task, script in enumerate([SCRIPT] * count if scripts is None else scripts)
        ]


def answer_of(process: ForkedScript) -> Any:
    return json.loads(process.printed())


@pytest.fixture
def answers(standing: Callable[[Path, int], StandingWorkers]) -> Answers:
    return lambda what, count: standing(SCRIPT, count).ask(what)


def test_workers_begin_as_the_chief_and_stay_equal(answers: Answers) -> None:
    """Each worker's loss is about its own number, and the gradients are added up."""
    first, *others = answers("train", 3)
    assert others == [first, first]
    begin, end, loss = first
    weight = np.array(begin)
    for _ in range(10):
        loss_before = sum(((weight - replica) ** 2).sum() for replica in range(3))
        weight = weight - 0.125 * sum(2 * (weight - replica) for replica in range(3))
    np.testing.assert_allclose(end, weight, rtol=1e-12)
    np.testing.assert_allclose(loss, loss_before, rtol=1e-12)


def test_compressed_gradients_are_near(answers: Answers) -> None:
    (begin, end, _), other = answers("compressed", 2)
    assert other[:2] == [begin, end]
    weight = np.array(begin)
    for _ in range(10):
        weight = weight - 0.125 * sum(2 * (weight - replica) for replica in range(2))
    np.testing.assert_allclose(end, weight, rtol=0.05)
    assert end != weight.tolist()


def test_every_record_once_an_epoch_and_nobody_hangs(answers: Answers) -> None:
    """Of 10 records in shards of 5, in shares of 2: steps of 4, 4 and 2 records."""
    for seen, steps, bias, weight in answers("uneven", 2):
        assert (seen, steps) == (10, 3)
        assert bias == weight[0] == weight[1] == -45.0


def test_sparse_gradients_are_those_of_all(answers: Answers) -> None:
    assert answers("sparse", 3) == [[3.0, 1.0, 1.0, 1.0, 0.0, 0.0]] * 3


def test_a_sum_over_all_replicas_is_what_was_assigned(answers: Answers) -> None:
    assert answers("assigned", 2) == [7, 7]


def test_what_replicas_wrote_is_saved_and_restored_as_one_value(answers: Answers) -> None:
    """Replicas of two workers have made 3 and 13 of it: the mean of 8 is everybody's, a sum of 16 is shared
    out, the first replica's 3 is in its worker's checkpoint.
    """
    for own, (before, saved, after) in zip((3, 13), answers("saves", 2), strict=True):
        for dtype in ("float32", "int64"):
            names = [f"{aggregation}_{dtype}" for aggregation in ("SUM", "MEAN", "ONLY_FIRST_REPLICA")]
            assert [before[name] for name in names] == [own] * 3
            assert [saved[name] for name in names] == [16, 8, own]
            assert [after[name] for name in names] == [8, 8, own]


@pytest.mark.parametrize(
    ("interval", "ends"), [({"save_checkpoint_steps": 2}, (3, 5)), ({"save_checkpoint_secs": 1e-9}, (3,))]
)
def test_a_monitored_loop_saves_what_all_workers_have_and_goes_on(
    interval: dict[str, Any], ends: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step adds 10 to the sum of 3 + 3, and 2 to the weight. The first worker's clock is everybody's."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("INTERVAL", json.dumps(interval))
    begun = 0
    for last_step in ends:
        monkeypatch.setenv("LAST_STEP", str(last_step))
        with workers("monitors", 2) as processes:  # as after a restart
            (begun_first, saved), (begun_second, _) = map(answer_of, processes)
        assert begun_first == begun_second == begun
        assert str(last_step) in saved
        assert len(saved) >= 2
        for step, values in saved.items():
            assert values == [6 + 10 * int(step), 2 * int(step)]
        begun = last_step


@pytest.mark.parametrize(
    ("interval", "steps"),
    [({"save_summaries_steps": 3}, [1, 4, 7]), ({"save_summaries_secs": 1e-9}, [1, 2, 3, 4, 5, 6, 7])],
)
def test_a_summary_of_a_sum_over_all_workers_is_written_by_the_first(
    answers: Answers,
    interval: dict[str, Any],
    steps: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step adds 2 to the weight of each of two workers."""
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("INTERVAL", json.dumps(interval))
    assert answers("summarizes", 2) == [28.0, 28.0]
    events = [event for path in tmp_path.glob("events*") for event in tf.train.summary_iterator(str(path))]
    written = {
        e.step: value.simple_value for e in events for value in e.summary.value if value.tag == "total"
    }
    assert written == {step: 4.0 * step for step in steps}


# --- what goes wrong


@pytest.mark.slow
def test_a_worker_that_never_comes_is_named() -> None:
    with workers("absent", 3) as processes:
        for task in (0, 2):
            kind, message = answer_of(processes[task])
            assert kind == "DeadlineExceededError"
            assert re.search(r"expected all 3 ranks within 6 s; rank 1 \(\S+\) did not come", message)


def test_workers_are_waited_for_as_long_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "0.3")
    with ReservedPorts(2) as reserved:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"within 0\.3 s; rank 1 \(\S+\) did not"):
            tf.distribute.MultiWorkerMirroredStrategy(resolver)


@pytest.mark.parametrize("what", ["killed", "killed_monitored"])
def test_survivors_of_a_killed_worker_name_it(what: str) -> None:
    with workers(what, 3) as processes:
        for task in (0, 2):
            kind, message = answer_of(processes[task])
            assert (kind, "rank 1" in message) == ("UnavailableError", True), message


def test_a_worker_that_is_stuck_is_named() -> None:
    with workers("stuck", 2) as processes:
        kind, message = answer_of(processes[0])
    assert (kind, "rank 1" in message) == ("DeadlineExceededError", True), message


def test_graphs_that_differ_are_shown_side_by_side(answers: Answers) -> None:
    for kind, message in answers("differ", 2):
        assert kind == "InvalidArgumentError"
        assert "expected all ranks to begin with the same collectives" in message
        assert "as number 2, none at rank 0" in message
        assert "'more/Initializer/Broadcast' float64[2]" in message


def test_workers_with_different_scripts_are_told_apart(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    shutil.copy(SCRIPT, other)
    other.write_text(other.read_text() + "\n# of another version\n")
    with workers("train", 2, [SCRIPT, other]) as processes:
        found = [answer_of(process) for process in processes]
    for kind, message in found:
        assert kind == "InvalidArgumentError"
        assert "expected all workers to run one script" in message
        assert "multi_worker_script.py" in message
        assert "other.py" in message


def test_workers_with_different_versions_are_told_apart() -> None:
    with workers("version", 2) as processes:
        found = [answer_of(process) for process in processes]
    for kind, message in found:
        assert kind == "InvalidArgumentError"
        assert f"flowrt {tf.__version__}, " in message
        assert "flowrt 0.0.0, " in message


def test_only_workers_may_have_the_strategy() -> None:
    spec = tf.train.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="ps", task_id=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a task of the jobs chief or worker"):
        tf.distribute.MultiWorkerMirroredStrategy(resolver)


def test_one_worker_alone_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with tf.Graph().as_default():
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])
            optimizer = tf.train.GradientDescentOptimizer(0.5)
        train = strategy.run(lambda: optimizer.minimize(tf.reduce_sum(v * v)))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train)
            np.testing.assert_array_equal(session.run(v), [0.0, 0.0])
    assert strategy.num_replicas_in_sync == 1


def test_the_cluster_of_the_environment_is_that_of_the_strategys_resolver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOWRT_CLUSTER", '{"chief": ["127.0.0.1:23456"]}')
    monkeypatch.setenv("FLOWRT_TASK", "chief:0")
    resolver = tf.distribute.MultiWorkerMirroredStrategy().cluster_resolver
    assert (resolver.task_type, resolver.task_id) == ("chief", 0)
    assert resolver.cluster_spec().as_dict() == {"chief": ["127.0.0.1:23456"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"bytes_per_pack": -1}, "bytes_per_pack >= 0"), ({"compression": "int8"}, "'int8'")],
)
def test_options_are_checked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        tf.distribute.CommunicationOptions(**arguments)


def test_buckets_go_from_the_last_to_the_first_and_keep_their_cap() -> None:
    with tf.Graph().as_default():
        shapes = [
            (tf.float32, [10]),
            (tf.float32, [3]),
            (tf.float64, [2]),
            (tf.float32, [4]),
            (tf.float32, [100]),
        ]
        tensors = [tf.zeros(shape, dtype) for dtype, shape in shapes]
        tensors.insert(2, tf.placeholder(tf.float32, [None]))
        found = buckets(tensors, 40)
    assert found == [[5], [4, 1], [3], [2], [0]]
