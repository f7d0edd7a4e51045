"""What public programs fetch, with the same "random" numbers in flowrt and in TensorFlow; for `compared`.

    python tests/scripts/public/recorded.py {flowrt|tensorflow} CLONES RESULTS [NAME ...]

CLONES holds a clone of each repository of `compared.txt` at ``owner/name``; what RESULTS has already is not
recorded again. A program runs under the name ``tensorflow``. Every draw of its graph, initial values of variables
included, becomes ordinary operations: a hash of the element's position and of the variable scope. So both
libraries compute with equal weights, masks and noise, and what they fetch can be compared. Datasets keep
their order. RESULTS get what the first RUNS runs of a session fetch (of one that fetches only operations: its
graph's trainable variables after it), and the exception that ended the program, if one did.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import gzip
import importlib
import importlib.abc
import importlib.machinery
import os
import pickle
import random
import re
import runpy
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
TABLE = HERE / "compared.txt"
LIBRARIES = "LIBRARIES"
"""The variable with folders of further libraries, to be searched after an environment's own."""

LARGEST = 4096
"""Elements of a fetched value that are kept: of a larger one, so many at equal distances."""


class Draws:
    """Operations of ``tf`` in the place of its random ones."""

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def uniform(self, shape: Any, dtype: Any = None, part: int = 0, **_: Any) -> Any:
        """In [0, 1), in float32 too, from the sine of the position."""
        tf = self._tf
        scope = re.sub("(^|/)[dD]rop[^/]*$", "", tf.get_variable_scope().name)  # a layer without variables
        salt = zlib.crc32(scope.encode()) % 1000
        size = tf.convert_to_tensor(shape, tf.int32)
        position = tf.cast(tf.range(tf.reduce_prod(size)), tf.float64)
        x = tf.sin(position * 12.9898 + (salt + 78.233 * part)) * 43758.5453
        below_one = tf.minimum(x - tf.floor(x), 1 - 1e-7)
        return tf.cast(tf.reshape(below_one, size), dtype or tf.float32)

    def normal(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        """Box and Muller's, of two uniforms."""
        tf = self._tf
        radius = tf.sqrt(-2.0 * tf.log(1.0 - self.uniform(shape, tf.float64)))
        return tf.cast(radius * tf.cos(2 * np.pi * self.uniform(shape, tf.float64, 1)), dtype or tf.float32)

    def truncated(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        return self._tf.clip_by_value(self.normal(shape, dtype), -2.0, 2.0)

    def integers(self, shape: Any, minval: Any, maxval: Any, Tout: Any = None, **_: Any) -> Any:
        tf = self._tf
        high = tf.convert_to_tensor(maxval, Tout)
        low = tf.cast(minval, high.dtype)
        span = tf.cast(high - low, tf.float64)
        return low + tf.cast(tf.floor(self.uniform(shape, tf.float64) * span), low.dtype)

    def shuffle(self, value: Any, **_: Any) -> Any:
        tf = self._tf
        value = tf.convert_to_tensor(value)
        keys = self.uniform(tf.shape(value)[:1])
        return tf.gather(value, tf.nn.top_k(keys, tf.shape(value)[0])[1])

    def multinomial(self, logits: Any, num_samples: Any, output_dtype: Any = None, **_: Any) -> Any:
        """The largest of the logits with Gumbel's noise."""
        tf = self._tf
        logits = tf.expand_dims(tf.cast(logits, tf.float64), 1)
        shape = tf.concat([tf.shape(logits)[:1], [num_samples], tf.shape(logits)[2:]], 0)
        noise = -tf.log(-tf.log(self.uniform(shape, tf.float64) * (1 - 2e-9) + 1e-9))
        return tf.cast(tf.argmax(logits + noise, 2), output_dtype or tf.int64)

    def candidates(
        self, true_classes: Any, num_true: int, num_sampled: int, *_: Any, **__: Any
    ) -> tuple[Any, Any, Any]:
        """The first classes, expected as often as one over their rank."""
        tf = self._tf
        sampled = tf.range(tf.constant(num_sampled, tf.int64))
        expected = [1.0 / (1.0 + tf.cast(classes, tf.float32)) for classes in (true_classes, sampled)]
        return (sampled, *expected)


class Record:
    """The values of a program's first runs, written to ``file`` when they are complete."""

    def __init__(self, file: Path, runs: int) -> None:
        self._file, self._runs = file, runs
        self._values: list[list[Any]] = []
        self._is_inside = False

    def around(self, session: Any) -> None:
        """Note what ``session``'s runs return, without those within a run and those of other threads."""
        run = session.run

        def recorded(session: Any, *arguments: Any, **options: Any) -> Any:
            if self._is_inside or threading.current_thread() is not threading.main_thread():
                return run(session, *arguments, **options)
            self._is_inside = True
            try:
                result = run(session, *arguments, **options)
                noted = result if any(True for _ in leaves(result)) else self._variables(session)
            finally:
                self._is_inside = False
            self._note(noted)
            return result

        session.run = recorded

    def around_models(self, keras: Any) -> None:
        """Note the results of Keras models: of `fit` the losses and metrics after each batch."""
        for name in ("fit", "fit_generator"):
            self._note_batches(keras, name)
        for name in ("evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
            self._note_result(keras.Model, name)

    def _note_batches(self, keras: Any, name: str) -> None:
        method = getattr(keras.Model, name)

        def note(_: int, logs: Any = None) -> None:
            logs = logs or {}
            self._note([logs[key] for key in sorted(logs) if key not in ("batch", "size")])

        def noted(model: Any, *arguments: Any, callbacks: Any = (), **options: Any) -> Any:
            callbacks = [*(callbacks or ()), keras.callbacks.LambdaCallback(on_batch_end=note)]
            options["workers"] = 0  # several of TensorFlow's draw from NumPy's one generator, in any order
            before, self._is_inside = self._is_inside, True
            try:
                return method(model, *arguments, callbacks=callbacks, **options)
            finally:
                self._is_inside = before

        setattr(keras.Model, name, noted)

    def _note_result(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return method(*arguments, **options)
            self._is_inside = True
            try:
                result = method(*arguments, **options)
            finally:
                self._is_inside = False
            self._note(result)
            return result

        setattr(owner, name, noted)

    def _note(self, result: Any) -> None:
        self._values.append(list(leaves(result)))
        if len(self._values) == self._runs:
            self.end("")

    def leave_out(self, owner: Any, name: str) -> None:
        """Do not note the runs within the method ``name`` of ``owner``: only one of the libraries has any."""
        method = getattr(owner, name)

        def unrecorded(*arguments: Any, **options: Any) -> Any:
            before, self._is_inside = self._is_inside, True
            try:
                return method(*arguments, **options)
            finally:
                self._is_inside = before

        setattr(owner, name, unrecorded)

    def _variables(self, session: Any) -> Any:
        try:
            return session.run(session.graph.get_collection("trainable_variables"))
        except Exception:  # some are not initialised yet
            return None

    def end(self, error: str) -> None:
        self._file.write_bytes(pickle.dumps((self._values, error)))
        sys.stdout.flush()
        os._exit(0)


def leaves(result: Any) -> Any:
    """The arrays of a fetched structure, in order; texts as their CRCs, but no single ones, as summaries are."""
    if isinstance(result, Mapping):  # whose keys are texts, or hooks in a monitored session
        names = {key: key if isinstance(key, str) else type(key).__name__ for key in result}
        result = [result[key] for key in sorted(result, key=names.__getitem__)]
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from leaves(part)
    elif result is not None:
        array = np.asarray(result)
        flat = array.reshape(-1)[:: max(1, array.size // LARGEST)]
        if array.dtype.kind in "fiubc":
            yield array.shape, flat.copy()
        elif array.dtype.kind in "OS" and array.ndim and all(isinstance(text, bytes) for text in flat):
            yield array.shape, np.array([zlib.crc32(text) for text in flat], np.float64)


# --- the two sides


def use_flowrt() -> Any:
    from flowrt.compat import tensorflow
    from flowrt.data.dataset import Dataset
    from flowrt.executor.session.session import BaseSession
    from flowrt.graph.ops.random import random_ops, sampling
    from flowrt.nn import sampled

    tensorflow.install()
    tf = importlib.import_module("tensorflow")
    draws = Draws(tf)
    random_ops.random_uniform_op = draws.uniform
    random_ops.random_standard_normal = draws.normal
    random_ops.truncated_normal_op = draws.truncated
    random_ops.random_uniform_int = draws.integers
    sampling.random_shuffle_op = draws.shuffle
    sampling.multinomial_op = draws.multinomial
    sampled._draw = lambda true, count, *_: sampled.Sample(*draws.candidates(true, 1, count))
    Dataset.shuffle = lambda self, *_, **__: self
    return BaseSession


def use_tensorflow(has_references: bool) -> Any:
    """TensorFlow 1.15. Its variables are resources, which keep a value while it is being read, unless it
    ``has_references``: such a variable may change between an operation of a step that reads it and the next.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    tf: Any = importlib.import_module("tensorflow")
    if not has_references:
        tf.compat.v1.enable_resource_variables()
    from tensorflow.python.client.session import BaseSession
    from tensorflow.python.ops import candidate_sampling_ops, gen_random_ops

    draws = Draws(tf)
    gen_random_ops.random_uniform = draws.uniform
    gen_random_ops.random_standard_normal = draws.normal
    gen_random_ops.truncated_normal = draws.truncated
    gen_random_ops.random_uniform_int = draws.integers
    gen_random_ops.random_shuffle = draws.shuffle
    gen_random_ops.multinomial = draws.multinomial
    for name in ("log_uniform_candidate_sampler", "uniform_candidate_sampler"):
        setattr(candidate_sampling_ops, name, draws.candidates)
    for dataset in (tf.data.Dataset, tf.compat.v2.data.Dataset):
        dataset.shuffle = lambda self, *_, **__: self
    return BaseSession


def use_digits(folder: Path) -> None:
    """scikit-learn's digits, eight times over, in the place of MNIST, below ``folder``."""
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    pixels = (small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.pad(pixels.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)), "constant")
    parts = {"train": slice(297, None), "t10k": slice(None, 297)}
    sets = {name: [np.concatenate([a[part]] * 8) for a in (images, labels)] for name, part in parts.items()}
    for name, (x, y) in sets.items():
        for kind, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
            header = np.array([0x0800 + array.ndim, *array.shape], ">i4").tobytes()
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes(), 1))
    tf: Any = importlib.import_module("tensorflow")
    full = {"train": 60000, "t10k": 10000}  # which programs for Keras write down
    tf.keras.datasets.mnist.load_data = lambda *_: tuple(
        tuple(np.resize(a, (full[name], *a.shape[1:])) for a in arrays) for name, arrays in sets.items()
    )
    input_data: Any = importlib.import_module("tensorflow.examples.tutorials.mnist.input_data")
    tf.examples.tutorials = sys.modules["tensorflow.examples.tutorials"]  # which "import a.b as c" looks up
    read = input_data.read_data_sets
    input_data.read_data_sets = lambda _=None, *rest, **options: read(str(folder), *rest, **options)


def use_made_data(folder: Path) -> None:
    """Small made sets in the place of Keras's, and below ``folder`` a made text in the place of a file."""
    keras: Any = importlib.import_module("tensorflow").keras
    random = np.random.RandomState(0)

    def images(classes: int) -> Any:
        rows = [(n, random.randint(0, 256, (n, 32, 32, 3)).astype("uint8")) for n in (400, 100)]
        return tuple((x, random.randint(0, classes, (n, 1))) for n, x in rows)

    def texts(classes: int, num_words: Any = None, maxlen: Any = None, **_: Any) -> Any:
        def some(n: int) -> Any:
            x = np.empty(n, object)
            x[:] = [[1, *random.zipf(1.3, random.randint(20, 120)).clip(4, (num_words or 20000) - 1).tolist()] for _ in x]
            return x, random.randint(0, classes, n)

        return some(400), some(100)

    words = {f"word{i}": i for i in range(1, 1000)}
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        getattr(keras.datasets, name).load_data = lambda *_, classes=classes, **__: images(classes)
    for name, classes in (("imdb", 2), ("reuters", 46)):
        data = getattr(keras.datasets, name)
        data.load_data = lambda *_, classes=classes, **options: texts(classes, **options)
        data.get_word_index = lambda *_, **__: words
    text = folder / "made.txt"
    text.write_text("\n".join(" ".join(f"w{(i * j) % 97}" for j in range(1, 40)) for i in range(1, 100)), "utf-8")
    keras.utils.get_file = lambda *_, **__: str(text)
    for utils in (keras.utils, importlib.import_module("tensorflow.keras.utils")):  # TensorFlow has two of them
        utils.plot_model = lambda *_, **__: None


class KerasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """``keras``, and what is below it, as ``tensorflow.keras``. Its older modules of one kind of layers each are
    ``tensorflow.keras.layers``, those of ``utils`` are ``tensorflow.keras.utils``."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] == "keras":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        found: Any = importlib.import_module("tensorflow").keras
        for part in spec.name.split(".")[1:]:
            found = getattr(found, part, found)
        module = types.ModuleType(spec.name)
        module.__dict__.update({name: getattr(found, name) for name in dir(found) if not name.startswith("__")})
        return module

    def exec_module(self, module: Any) -> None:
        pass


def place_softly(session: Any) -> None:
    """Sessions take another device for one that is not there, as a GPU."""
    tf: Any = importlib.import_module("tensorflow")
    start = session.__init__

    def start_softly(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        config = config or tf.ConfigProto()
        config.allow_soft_placement = True
        start(self, target, graph, config)

    session.__init__ = start_softly


def use_steady_steps() -> None:
    """Adam, and Keras's RMSprop, with a larger epsilon: with its own, a gradient that is nothing but rounding, as
    that of a bias before batch normalization, moves a weight by the whole learning rate."""
    tf: Any = importlib.import_module("tensorflow")
    adam = tf.train.AdamOptimizer
    start = adam.__init__

    def start_steadily(
        self: Any, learning_rate: Any = 0.001, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 0, *rest: Any,
        **options: Any,
    ) -> None:  # fmt: skip
        start(self, learning_rate, beta1, beta2, 1e-3, *rest, **options)

    adam.__init__ = start_steadily
    def start_own_steadily(self: Any, begin: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **{**options, "epsilon": 1e-3})

    for own in (tf.keras.optimizers.Adam, tf.keras.optimizers.RMSprop):
        own.__init__ = functools.partialmethod(start_own_steadily, own.__init__)


def use_quiet_gym() -> None:
    """Environments of gym are not drawn, and start from the same seeds."""
    try:
        from gym import core
        from gym.envs import classic_control
        from gym.utils import seeding
    except ImportError:
        return
    seeding.create_seed = lambda *_, **__: 0
    for environment in (core.Wrapper, *vars(classic_control).values()):
        if isinstance(environment, type):
            environment.render = lambda *_, **__: None


class SeededRandom(random.Random):
    def __init__(self, seed: Any = 0) -> None:
        super().__init__(seed)


class SortedSet(set):
    """A program's set, as of its characters, in an order that no version of Python changes."""

    def __iter__(self) -> Any:
        try:
            return iter(sorted(super().__iter__()))
        except TypeError:  # of several types
            return super().__iter__()


def use_old_numpy() -> None:
    """Names of NumPy, SciPy and Pillow that programs of 2016 use, and generators that every run seeds alike."""
    misc: Any = importlib.import_module("scipy.misc")
    misc.imsave = lambda *_: None
    images: Any = importlib.import_module("PIL.Image")
    images.ANTIALIAS = images.LANCZOS
    for name in ("eigen", "eigen.arpack"):
        sys.modules[f"scipy.sparse.linalg.{name}"] = importlib.import_module("scipy.sparse.linalg")
    old = {
        "float": float, "int": int, "object": object, "bool8": np.bool_, "float_": np.float64,
        "mat": np.asmatrix, "asfarray": np.asarray, "asscalar": lambda a: np.asarray(a).item(),
    }  # fmt: skip
    for name, value in old.items():
        if name not in vars(np):
            setattr(np, name, value)
    reshape = np.reshape
    np.reshape = lambda a, *shape, newshape=(), **options: reshape(a, *(shape or [newshape]), **options)
    seed = np.random.seed
    np.random.seed = lambda *_, **__: seed(0)
    np.random.seed()
    fixed = random.seed
    fixed(0)
    random.seed = lambda *_, **__: fixed(0)
    random.Random = SeededRandom


# --- the programs


class Program(NamedTuple):
    """A file of a repository, ``-m`` and a module of it, or ``@`` and a file of this folder; and its arguments.
    The first runs in its own folder, the others in the repository's. ``{work}`` is an empty folder."""

    repository: str
    words: list[str]

    @property
    def name(self) -> str:
        """As a file may be called: nmt's arguments alone are longer than that."""
        return re.sub(r"\W+", "_", " ".join([self.repository, *self.words])).strip("_")[:200]


def read_programs(text: str) -> list[Program]:
    """The programs of a table: a line for each repository, and below it an indented one for each program."""
    programs, repository = [], ""
    for line in text.splitlines():
        if not line.startswith(" "):
            repository = line
        else:
            programs.append(Program(repository, shlex.split(line)))
    return programs


def run(program: Program, clone: Path, record: Record, seconds: float) -> None:
    """Run ``program`` in this process, and end it."""
    np.random.seed()
    random.seed()
    timer = threading.Timer(seconds, record.end, [""])
    timer.daemon = True
    timer.start()
    first, *words = [word.replace("{work}", tempfile.mkdtemp()) for word in program.words]
    is_module, is_ours = first.startswith("-m"), first.startswith("@")
    file = HERE / first[1:] if is_ours else (clone / first).resolve()
    folder = clone if is_module or is_ours else file.parent
    sys.argv = [first, *words]
    sys.path[:1] = [str(folder), str(clone), str(clone / "src"), str(clone.parent)]  # where a program finds its packages
    sys.path.append(str(HERE))  # where our models find `made_data`
    try:
        os.chdir(folder)
        if is_module:
            runpy.run_module(first[2:], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(file), {"set": SortedSet}, run_name="__main__")
    except SystemExit:
        pass
    except BaseException as error:
        traceback.print_exc()
        record.end(f"{type(error).__name__}: {error}"[:400])
    record.end("")


def record_in_child(program: Program, side: str, session: Any, arguments: argparse.Namespace) -> None:
    """Record ``program`` in a copy of this process, which has its library imported already."""
    results = arguments.results.resolve()
    file = results / f"{program.name}.{side}.pkl"
    child = os.fork()
    if not child:
        os.setsid()  # so that the program's own processes can be ended with it
        log = os.open(file.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        record = Record(file, arguments.runs)
        record.around(session)
        keras = importlib.import_module("tensorflow").keras
        record.around_models(keras)
        record.leave_out(keras.Model, "add_loss")  # in which TensorFlow runs constants
        for owner in (keras.layers.Layer, keras.Model):
            record.leave_out(owner, "set_weights")
        saver = importlib.import_module("tensorflow").train.Saver
        record.leave_out(saver, "save")
        record.leave_out(saver, "restore")
        run(program, arguments.clones.resolve() / program.repository, record, arguments.seconds)
    end = time.monotonic() + 2 * arguments.seconds
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    if not file.exists():
        file.write_bytes(pickle.dumps(([], "killed")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what public TensorFlow 1 programs fetch.")
    parser.add_argument("side", choices=["flowrt", "tensorflow"])
    parser.add_argument("clones", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*", help="parts of the programs' names; none: all of compared.txt")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--references", action="store_true", help="reference variables in TensorFlow")
    parser.add_argument("--seconds", type=int, default=40)
    arguments = parser.parse_args()
    sys.path += filter(None, os.environ.get(LIBRARIES, "").split(os.pathsep))
    os.environ.setdefault("MPLBACKEND", "agg")
    arguments.results.mkdir(exist_ok=True)
    is_ours = arguments.side == "flowrt"
    session = use_flowrt() if is_ours else use_tensorflow(arguments.references)
    with tempfile.TemporaryDirectory() as folder:
        use_digits(Path(folder))
        use_made_data(Path(folder))
        if not is_ours:  # flowrt has a finder of its own
            sys.meta_path.insert(0, KerasFinder())
        record_all(arguments, session)


def record_all(arguments: argparse.Namespace, session: Any) -> None:
    place_softly(session)
    use_steady_steps()
    use_old_numpy()
    use_quiet_gym()
    builtins.input = lambda *_: ""
    vars(builtins).update(xrange=range, basestring=str)  # Python 2's
    for program in read_programs(TABLE.read_text()):
        is_named = not arguments.names or any(name in program.name for name in arguments.names)
        if is_named and not (arguments.results / f"{program.name}.{arguments.side}.pkl").exists():
            record_in_child(program, arguments.side, session, arguments)


if __name__ == "__main__":
    main()
