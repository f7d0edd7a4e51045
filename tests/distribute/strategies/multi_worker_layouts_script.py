"""What the workers of `test_multi_worker_layouts` run, with the arguments WHAT TASK ADDRESSES...

Prints what came of it as JSON. With ``stand`` for WHAT it reads lines of a WHAT and environment variables
from its input, and prints a line for each.
"""

import contextlib
import functools
import itertools
import logging
import os
import signal
import socket
import struct
import sys
import time

import numpy as np

import flowrt as tf
from flowrt.executor.buffers.buffer_assignment import Storage, nbytes_of
from flowrt.graph.resources.variables import VariableResource
from flowrt.train.checkpoints import checkpoint
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net
from tests.distribute.strategies.random_updates import RandomUpdates
from tests.distribute.strategies.standing_workers import questions, reply

WHAT, TASK, ADDRESSES = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
Axis, Mesh = tf.distribute.Axis, tf.distribute.Mesh

MESHES = {
    "dp": (Mesh([("dp", len(ADDRESSES))]), "dp", {}),
    "tp": (Mesh([("tp", len(ADDRESSES))]), None, COLUMNS),
    "dp x tp": (Mesh([("dp", 2), ("tp", 2)]), "dp", COLUMNS),
    "tp x turns": (Mesh([("tp", len(ADDRESSES)), Axis("turn", 2, is_time=True)]), "turn", COLUMNS),
}
"""The mesh, the axes of the batch, and the layouts of variables."""

CONFIG = tf.ConfigProto(device_count={"CPU": 2})


def workers(timeout_s=30.0):
    spec = tf.train.ClusterSpec({"worker": ADDRESSES})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=TASK)
    options = tf.distribute.CommunicationOptions(timeout_seconds=timeout_s)
    return {"cluster_resolver": resolver, "communication_options": options}


def strategy(mesh, batch=None, timeout_s=30.0):
    return tf.distribute.MultiWorkerLayoutStrategy(mesh, batch, None, **workers(timeout_s))


def trains():
    """The losses and, summed, the variables of the net and mesh ``train NET MESH``, after 20 steps."""
    _, net, what = WHAT.split(":")
    mesh, batch, layouts = MESHES[what]
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        found = strategy(mesh, batch)
        found.variable_layouts(of_net(NETS[net], layouts))
        with found.scope():
            built = NETS[net]()
        with tf.Session(graph=graph, config=CONFIG) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([built.loss, built.train], built.feeds)[0] for _ in range(20)]
            return losses, [v.tolist() for v in session.run(tf.trainable_variables())]


def shards():
    """The losses and variables of the net ``shard NET STAGE``, fully sharded, after 20 steps; or ``shard NET
    STAGE PRECISION`` of the net in float32.
    """
    _, net, stage, *compute = WHAT.split(":")
    options = {"policy": tf.distribute.Precision(compute[0])} if compute else {}
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        found = tf.distribute.FullyShardedStrategy(
            Mesh([("dp", len(ADDRESSES))]),
            stage=int(stage),
            units=r"block\d|\w+",
            min_bytes=0,
            **workers(),
            **options,
        )
        with found.scope():
            built = NETS[net](tf.float32) if compute else NETS[net]()
        with tf.Session(graph=graph, config=CONFIG) as session:
            session.run(tf.global_variables_initializer())
            losses = [float(session.run([built.loss, built.train], built.feeds)[0]) for _ in range(20)]
            return losses, [v.tolist() for v in session.run(tf.trainable_variables())]


def combines():
    """The losses of 20 steps of ``combined NET WHAT STAGE TURNS NARROW``: see `test_sharded_combinations`."""
    # with pytest, for which the other answers need not wait
    from tests.distribute.strategies.test_fully_sharded import trained_under
    from tests.distribute.strategies.test_sharded_combinations import BUILT, IN_FLOAT32, sharded

    _, net, what, stage, turns, is_narrow = WHAT.split(":")
    policy = IN_FLOAT32 if is_narrow == "1" else None
    strategy = sharded(what, int(stage), BUILT[net], turns == "1", policy, **workers())
    return [float(loss) for loss in trained_under(strategy, BUILT[net])[0]]


def trains_by_norms():
    """The losses of 20 steps of ``norms OPTIMIZER STAGE``: see `test_fully_sharded`."""
    # with pytest, for which the other answers need not wait
    from tests.distribute.strategies.test_fully_sharded import (
        BY_NORMS,
        clipped_and_half_frozen,
        sharded,
        trained_under,
    )

    _, name, stage = WHAT.split(":")
    strategy = sharded("dp 2", int(stage), "mlp", **workers())
    build = functools.partial(clipped_and_half_frozen, BY_NORMS[name])
    return [float(loss) for loss in trained_under(strategy, build)[0]]


def updates():
    """What the steps of the random program ``updates SEED`` give."""
    program = RandomUpdates(int(WHAT.partition(":")[2]))
    built = program.build(program.strategy(**workers()))
    with tf.Session(config=CONFIG) as session:
        return [np.asarray(value).tolist() for value in program.history(session, built)]


def writes():
    """What the steps of ``writes PROGRAM STAGE`` give: see `test_updates_of_rows`."""
    # with pytest, for which the other answers need not wait
    from tests.distribute.strategies.test_updates_of_rows import MESH, PROGRAMS, results

    _, number, stage = WHAT.split(":")
    strategy = tf.distribute.FullyShardedStrategy(MESH, stage=int(stage), min_bytes=0, **workers())
    return results(PROGRAMS[int(number)], strategy)[0]


def overflows():
    """What changes in a step in which the gradient of the last worker's rows alone has an infinity, and in
    those around it, ``overflows STAGE``, in float16 with a loss scale: the names of variables.
    """
    stage = int(WHAT.partition(":")[2])
    found = tf.distribute.FullyShardedStrategy(
        Mesh([("dp", len(ADDRESSES))]),
        stage=stage,
        min_bytes=0,
        policy=tf.distribute.Precision("float16"),
        **workers(),
    )
    with found.scope():
        x = tf.placeholder(tf.float32, [8, 4])
        w = tf.get_variable("w", [4, 4], initializer=tf.ones_initializer())
        inner = tf.train.MomentumOptimizer(0.5, 0.9)
        scale = tf.train.experimental.DynamicLossScale(2.0, 100)
        optimizer = tf.train.experimental.MixedPrecisionLossScaleOptimizer(inner, scale)
        train = optimizer.minimize(tf.reduce_sum(tf.matmul(x, w)), tf.train.get_or_create_global_step())
    good = np.ones([8, 4], np.float32)
    bad = good.copy()
    bad[-1, 0] = np.inf
    with tf.Session(config=CONFIG) as session:
        session.run(tf.global_variables_initializer())
        names = [v.op.name for v in tf.global_variables()]
        states = [session.run(tf.global_variables())]
        for fed in (good, bad, good):
            session.run(train, {x: fed})
            states.append(session.run(tf.global_variables()))
        return [
            sorted(n for n, a, b in zip(names, one, other, strict=True) if np.any(a != b))
            for one, other in itertools.pairwise(states)
        ], [bool(np.isfinite(v).all()) for v in states[-1]]


def sends():
    """The bytes that this worker's sockets received in a step of ``sends STAGE``, the mean of 20 steps, and
    those of the variables.
    """
    stage = int(WHAT.partition(":")[2])
    options = workers()
    implementation = tf.distribute.CommunicationOptions.Implementation.RING
    options["communication_options"] = tf.distribute.CommunicationOptions(implementation=implementation)
    found = tf.distribute.FullyShardedStrategy(
        Mesh([("dp", len(ADDRESSES))]), stage=stage, units=r"layer\d", **options
    )
    with found.scope():
        x = tf.placeholder(tf.float32, [4, 256])
        h = x
        for layer in range(6):
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/up", [256, 128])))
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/down", [128, 256])))
        loss = tf.reduce_mean(tf.square(h))
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    with tf.Session(config=CONFIG) as session:
        session.run(tf.global_variables_initializer())
        nbytes = sum(v.nbytes for v in session.run(tf.trainable_variables()))
        session.run([train, loss], {x: np.ones([4, 256])})
        before = received_bytes()
        for _ in range(20):
            session.run([train, loss], {x: np.ones([4, 256])})
        return (received_bytes() - before) / 20, nbytes


def keeps():
    """Bytes a parameter of ``keeps STAGE REDUCE`` in this worker's variables, and in tensors that are there
    when the first update begins; and how many layers, of two variables each, are whole or on their way at a
    time, at most. REDUCE: the dtype of gradients, if products are in bfloat16; else nothing.
    """
    _, stage, reduce = WHAT.split(":")
    policy = tf.distribute.Precision("bfloat16", reduce=reduce) if reduce else None
    found = tf.distribute.FullyShardedStrategy(
        Mesh([("dp", len(ADDRESSES))]), stage=int(stage), units=r"layer\d+", policy=policy, **workers()
    )
    layers, width = 16, 64
    with found.scope():
        x = tf.placeholder(tf.float32, [len(ADDRESSES), width])
        h = x
        for layer in range(layers):
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/up", [width, width // 2])))
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/down", [width // 2, width])))
        train = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.square(h)))
    with tf.Session(config=CONFIG) as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {x: np.ones([len(ADDRESSES), width])})
        resources = session._runtime._resources.values()
        kept = sum(r.array.nbytes for r in resources if isinstance(r, VariableResource) and r.array.ndim)
        plans = [plan for request in session._requests.values() for plan in request.plans.values()]
        (part,) = plans[-1].partitions.values()
        live = live_at_first_update(part)
        whole = most_gathered(part) / (4 * width**2)
        return kept / (layers * width**2), live / (layers * width**2), whole


def counts():
    """The bytes a parameter of ``counts STAGE REDUCE``: see `test_sharded_bytes`."""
    # with pytest, for which the other answers need not wait
    from tests.distribute.strategies.test_sharded_bytes import counted

    _, stage, reduce = WHAT.split(":")
    return counted(int(stage), reduce, Mesh([("dp", len(ADDRESSES))]), **workers())


def peaks():
    """The most bytes of parameters in the pool: see `test_sharded_memory`."""
    # with pytest, for which the other answers need not wait
    from tests.distribute.strategies.test_sharded_memory import most_of_parameters

    return most_of_parameters(Mesh([("dp", len(ADDRESSES))]), 2, **workers())


def most_gathered(part):
    """The most bytes of gathered variables that are there, or on their way, at a time, by the order of the
    plan. Those of a unit are views of one buffer.
    """
    order, changes = list(part.schedule.order), []
    for position, node in enumerate(order):
        if node.op.name == "_GroupStart" and node.outputs and "/stretch" in node.name:
            views = [
                other for other in order if (node.name, 0) in other.inputs and other.op.name == "TakeApart"
            ]
            storage = [part.buffers.storage[each.name] for each in (node, *views)]
            assert storage == [Storage.BUFFER, Storage.VIEW]
            names = {each.name for each in views}
            readers = [i for i, other in enumerate(order) if any(ref[0] in names for ref in other.inputs)]
            changes += [
                (position, nbytes_of(node.outputs[0])),
                (max(readers) + 0.5, -nbytes_of(node.outputs[0])),
            ]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


def live_at_first_update(part):
    """The bytes of tensors made before the first update and read by it or later."""
    order = list(part.schedule.order)
    first = next(i for i, node in enumerate(order) if node.name.startswith("Adam/update"))
    made = {(node.name, k) for node in order[:first] for k in range(len(node.outputs))}
    read = {ref for node in order[first:] for ref in node.inputs} & made
    nodes, buffers = part.subgraph.nodes, part.buffers

    def base(ref):
        while nodes[ref[0]].op.alias and buffers.storage_of(ref) is not Storage.RESOURCE:
            ref = nodes[ref[0]].inputs[nodes[ref[0]].op.aliased]
        return ref

    in_memory = (Storage.BUFFER, Storage.REGISTER)
    roots = {base(ref) for ref in read}
    return sum(nbytes_of(part.subgraph.spec(r)) for r in roots if buffers.storage_of(r) in in_memory)


def received_bytes():
    """The bytes that all TCP connections of this process have received so far, by the kernel's count."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("<Q", info, 128)[0]  # tcpi_bytes_received
        except OSError:
            pass
    return total


def draws_graphs():
    """Random graphs of the seeds from FIRST to before END, ``graphs:FIRST:END``, or ``loops:FIRST:END`` for
    some with loops and branches, each under a random mesh over all processes: where results are not those of
    one device.
    """
    # with pytest, for which the other answers need not wait
    from tests.graph.passes.layouts.random_layouts import give, random_layout, random_mesh
    from tests.graph.passes.layouts.test_random_layouts import results
    from tests.graph.random_graphs import CALLS, CONTROL_FLOW, RandomGraph

    kind, first, end = WHAT.split(":")
    calls, kinds = (8, (*CALLS, *2 * CONTROL_FLOW)) if kind == "loops" else (12, CALLS)
    wrong = []
    for seed in range(int(first), int(end)):
        rng, drawn = np.random.default_rng(seed), RandomGraph(seed, calls, kinds)
        with drawn.graph:
            fetches = [*drawn.ys, *[g for y in drawn.ys for g in tf.gradients(y, drawn.xs) if g is not None]]
            fetches = [tf.convert_to_tensor(each) for each in fetches]
            changes = [t for t in drawn.made if t.shape.as_list() == [3, 3]]
            change = changes[int(rng.integers(len(changes)))]
            update = drawn.variable.assign_add(0.1 * tf.stop_gradient(change))
        expected = results(drawn, fetches, update)
        meshes = (random_mesh(rng) for _ in itertools.count())
        shape = next(m for m in meshes if m.num_devices % len(ADDRESSES) == 0)
        layouts = strategy(shape)
        with drawn.graph:
            mesh = layouts.mesh
            stored = random_layout(rng, mesh, (3, 3), in_time=False)
            give(drawn.variable, random_layout(rng, mesh, (3, 3), in_time=True), stored)
            for x in drawn.xs[:-1]:
                give(x, random_layout(rng, mesh, x.shape.as_list(), in_time=True))
        found = results(drawn, fetches, update)
        for before, after in zip(expected, found, strict=True):
            for one, many in zip(before, after, strict=True):
                if not np.allclose(many, one, 1e-9, 1e-12, equal_nan=True):
                    wrong.append(f"seed {seed}, {mesh}")
    return wrong


def quadratic():
    """A step that differs in one worker, or in which one worker fails: WHAT."""
    with strategy(Mesh([("dp", 2), ("tp", 2)]), "dp", timeout_s=5.0).scope():
        x = tf.placeholder(tf.float64, [4, 4])
        w = tf.get_variable("w", [4, 4], tf.float64, tf.ones_initializer(), layout=[None, "tp"])
        v = tf.get_variable("v", [4, 2], tf.float64, tf.ones_initializer(), layout=["tp", None])
        rate = 0.25 if WHAT == "differ" and TASK == 1 else 0.125
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.matmul(x, w), v))) * rate
        train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    with tf.Session(config=CONFIG) as session:
        session.run(tf.global_variables_initializer())
        for number in range(4):
            if TASK == 1 and number == 2:
                hurt()
            last = session.run([loss, train], {x: np.ones([4, 4])})[0]
        return float(last)


def hurt():
    if WHAT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if WHAT == "stuck":
        time.sleep(600)


def reads():
    """Two epochs of an unseeded, shuffled dataset of 0..7 in batches of 4: the sums of each step, and what a
    variable has summed up.
    """
    found = strategy(Mesh([("dp", 2)]), "dp")
    with found.scope():
        rows = tf.data.Dataset.from_tensor_slices(np.arange(8.0)).shuffle(8).batch(4, drop_remainder=True)
        iterator = rows.make_initializable_iterator()
        w = tf.get_variable("w", [], tf.float64, tf.zeros_initializer())
        total = tf.reduce_sum(tf.square(iterator.get_next()))
        add = w.assign_add(total)
    sums = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(iterator.initializer)
            try:
                while True:
                    sums.append(float(session.run([total, add])[0]))
            except tf.errors.OutOfRangeError:
                pass
        return sums, float(session.run(w))


def draws():
    """Without a seed: three losses with dropout, and who calls Python and prints."""
    called = []

    def note(x):
        called.append(float(x))
        return x

    with strategy(Mesh([("dp", 2)]), "dp").scope():
        x = tf.placeholder(tf.float64, [4, 4])
        w = tf.get_variable("w", [4, 4], tf.float64)
        loss = tf.reduce_mean(tf.nn.dropout(tf.matmul(x, w), 0.5))
        seen = tf.py_func(note, [loss], tf.float64)
        seen.set_shape([])
        doubled = seen * 2
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rows = np.arange(16.0).reshape(4, 4)  # all different: so are the losses of different draws
        losses = [session.run([loss, doubled], {x: rows}) for _ in range(3)]
        return np.array(losses).tolist(), called


LAYOUTS = {"rows": {"w": ["a", None], "u": ["a"]}, "columns": {"w": [None, "a"]}, "whole": {}}
"""Of the variables of `saved_variables`, by name."""


def saved_variables(of_layout):
    """A matrix, and smaller variables, for checkpoints; four devices, equally many in each process."""
    with strategy(Mesh([("a", 2), ("b", 2)]), timeout_s=20.0).scope():
        layouts = LAYOUTS[of_layout]
        rows = np.arange(21.0).reshape(7, 3)
        return {
            name: tf.get_variable(name, initializer=tf.constant(value), layout=layouts.get(name))
            for name, value in {"w": rows, "u": rows[:, 0] / 2, "step": np.int64(5)}.items()
        }


def saves():
    """A checkpoint, ``saves:LAYOUT``, and the one after it, which is restored: the values before, between and
    after, and how many bytes this process has written.
    """
    found = saved_variables(WHAT.split(":")[1])
    saver, written = tf.train.Saver(), []
    note_writes(written)
    with tf.Session(config=CONFIG) as session:
        session.run(tf.global_variables_initializer())
        before = session.run(found)
        prefix = saver.save(session, f"{os.environ['CHECKPOINTS']}/model")
        session.run([v.assign(tf.zeros_like(v)) for v in found.values()])
        zeros = session.run(found)
        saver.restore(session, prefix)
        values = before, zeros, session.run(found)
        return [{name: v.tolist() for name, v in each.items()} for each in values], written


def note_writes(written):
    """Note the number of bytes of each shard that this process writes."""
    real = checkpoint.write_shard

    def noted(path, pieces):
        entry = real(path, pieces)
        written.append(sum(piece.nbytes for piece in pieces))
        return entry

    checkpoint.write_shard = noted


def restores():
    """The values that ``restores:LAYOUT`` finds in the checkpoint; or the error, and the values after it."""
    found = saved_variables(WHAT.split(":")[1])
    with tf.Session(config=CONFIG) as session:
        session.run([v.assign(tf.ones_like(v)) for v in found.values()])
        try:
            tf.train.Saver().restore(session, f"{os.environ['CHECKPOINTS']}/model")
        except tf.errors.OpError as error:
            return type(error).__name__, str(error), [v.tolist() for v in session.run(list(found.values()))]
        return {name: v.tolist() for name, v in session.run(found).items()}


def loads():
    """The values from the file CHECKPOINTS/w.safetensors, in rows."""
    found = saved_variables("rows")
    with tf.Session(config=CONFIG) as session:
        names = {"w": tf.train.Transposed("weight"), "u": "bias"}
        tf.train.load_safetensors(f"{os.environ['CHECKPOINTS']}/w.safetensors", names, session)
        return [v.tolist() for v in session.run([found["w"], found["u"]])]


def fails_to_save():
    """One process has no value of a variable; one is killed while it writes: what the others raise."""
    found = saved_variables("rows")
    saver, prefix = tf.train.Saver(), f"{os.environ['CHECKPOINTS']}/model"
    with tf.Session(config=CONFIG) as session:
        session.run([v.initializer for name, v in found.items() if name != "step" or WHAT != "uninitialized"])
        if TASK == 1 and WHAT == "killed_saving":
            checkpoint.write_shard = lambda path, pieces: os.kill(os.getpid(), signal.SIGKILL)
        saver.save(session, prefix)


def monitors():
    """A loop to the step LAST_STEP, which saves to the directory CHECKPOINTS when the first worker's clock
    says so: the step that it began at, the variable at the end and in the checkpoints.
    """
    found = strategy(Mesh([("dp", 2)]), "dp")
    with found.scope():
        x = tf.placeholder(tf.float64, [4, 2])
        w = tf.get_variable("w", [2], tf.float64, tf.zeros_initializer(), layout=["dp"])
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_mean(tf.matmul(x, tf.expand_dims(w, 1)))
        train = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
        tf.summary.scalar("loss", loss)
    directory = os.environ["CHECKPOINTS"]
    hooks = [tf.train.StopAtStepHook(last_step=int(os.environ["LAST_STEP"]))]
    secs = 1e-9 if TASK == 0 else 1e9
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, save_checkpoint_secs=secs, save_summaries_steps=2
    ) as session:
        begun = session.run_step_fn(lambda step_context: int(step_context.session.run(step)))
        while not session.should_stop():
            last = session.run([w, train], {x: np.ones([4, 2])})[0]
    saved = {}
    for prefix in tf.train.get_checkpoint_state(directory).all_model_checkpoint_paths:
        saved[prefix.rpartition("-")[2]] = tf.train.NewCheckpointReader(prefix).get_tensor("w").tolist()
    return begun, last.tolist(), saved


def fetches():
    """What is fetched of sizes that no process knows, of strings and flags, and of one worker alone."""
    with strategy(Mesh([("dp", 2)]), "dp").scope():
        v = tf.get_variable("v", initializer=tf.constant([3.0, -1.0, 2.0], tf.float64), layout=["dp"])
        whole = tf.get_variable("whole", initializer=tf.constant([1.5], tf.float64))
        parts = [shard.value for shard in tf.distribute.local_shards(v)]
        outputs = [tf.where(v > 0)[:, 0], tf.as_string(v), v > 0, *parts]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        alone = session.run(whole).tolist() if TASK == 0 else None
        where, texts, *rest = session.run(outputs + ([whole] if TASK == 0 else []))[: len(outputs)]
        return where.tolist(), [text.decode() for text in texts], *[each.tolist() for each in rest], alone


def feeds():
    """Each worker feeds rows of its own, of one shape, as replicas would."""
    with strategy(Mesh([("dp", 2)]), "dp").scope():
        x = tf.placeholder(tf.float64, [4, 2])
        w = tf.get_variable("w", [2, 1], tf.float64)
        loss = tf.reduce_mean(tf.matmul(x, w))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return float(session.run(loss, {x: np.full([4, 2], TASK)}))


def outside():
    step = tf.get_variable("step", [], tf.float64, tf.zeros_initializer())
    with strategy(Mesh([("dp", 2)]), "dp").scope():
        w = tf.get_variable("w", [], tf.float64, tf.zeros_initializer())
        total = w + step
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return float(session.run(total))


def forgets():
    """The warnings of a script that makes a strategy and does not use it, and then those of one that does."""
    texts = [[], []]
    for number, shown in enumerate(texts):
        handler = logging.Handler()
        handler.emit = lambda record, shown=shown: shown.append(record.getMessage())
        logging.getLogger("flowrt").addHandler(handler)
        with tf.Graph().as_default():
            found = tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), **workers())
            with found.scope() if number else contextlib.nullcontext():
                w = tf.get_variable("w", [2], tf.float64)
                optimizer = tf.train.GradientDescentOptimizer(0.1)
                optimizer.minimize(tf.reduce_sum(w * w))
                optimizer.minimize(tf.reduce_sum(w))
        logging.getLogger("flowrt").removeHandler(handler)
    return texts


def differs_alone():
    """What the error says if the first worker alone, after a step of both, fetches or saves."""
    texts = []
    for does in ("fetch", "save", "other fetch"):
        with tf.Graph().as_default():
            with strategy(Mesh([("dp", 2)]), "dp").scope():
                x = tf.placeholder(tf.float64, [4, 2], name="x")
                w = tf.get_variable("w", [2, 1], tf.float64, layout=["dp", None])
                loss = tf.reduce_mean(tf.matmul(x, w), name="loss")
                train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
                saver = tf.train.Saver()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                if does != "other fetch":
                    session.run(train, {x: np.ones([4, 2])})
                try:
                    if TASK == 0 and does == "save":
                        saver.save(session, f"{os.environ['CHECKPOINTS']}/model")
                    elif TASK == 0:
                        session.run(loss, {x: np.ones([4, 2])})
                    session.run(train, {x: np.ones([4, 2])})
                except tf.errors.OpError as error:
                    texts.append(str(error))
    return texts


DOES = {
    "train": trains,
    "shard": shards,
    "combined": combines,
    "norms": trains_by_norms,
    "updates": updates,
    "writes": writes,
    "overflows": overflows,
    "sends": sends,
    "keeps": keeps,
    "counts": counts,
    "peaks": peaks,
    "graphs": draws_graphs,
    "loops": draws_graphs,
    "reads": reads,
    "draws": draws,
    "saves": saves,
    "restores": restores,
    "loads": loads,
    "uninitialized": fails_to_save,
    "killed_saving": fails_to_save,
    "monitors": monitors,
    "fetches": fetches,
    "outside": outside,
    "feeds": feeds,
    "alone": differs_alone,
    "forgets": forgets,
}


def answer():
    try:
        return DOES.get(WHAT.partition(":")[0], quadratic)()
    except tf.errors.OpError as error:
        return [type(error).__name__, str(error)]


for WHAT in questions(sys.argv[1]):  # noqa: B007 (the functions above read it)
    reply(answer())
