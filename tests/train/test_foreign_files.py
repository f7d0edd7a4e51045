"""`load_safetensors`: variables from files that others wrote; all that does not fit is named at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import flowrt as tf

KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)
BIAS = np.array([1.5, -2.0, 3.0, 0.25], np.float32)
Transposed, load = tf.train.Transposed, tf.train.load_safetensors


@pytest.fixture
def graph() -> Any:
    """Two layers' variables, as of a model."""
    with tf.Graph().as_default() as made:
        for layer in (0, 1):
            tf.get_variable(f"layer{layer}/kernel", [3, 4])
            tf.get_variable(f"layer{layer}/bias", [4])
        yield made


def tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """As PyTorch names them, and with matrices the other way round."""
    found = {}
    for layer in (0, 1):
        found[f"h.{layer}.mlp.weight"] = np.ascontiguousarray((KERNEL + layer).T.astype(dtype))
        found[f"h.{layer}.mlp.bias"] = (BIAS + layer).astype(dtype)
    return found


PAIRS = [(r"layer(\d+)/kernel", Transposed(r"h.\1.mlp.weight")), (r"layer(\d+)/bias", r"h.\1.mlp.bias")]
BY_NAME = {
    "layer0/kernel": Transposed("h.0.mlp.weight"),
    "layer0/bias:0": "h.0.mlp.bias",
    "layer1/kernel": Transposed("h.1.mlp.weight", (1, 0)),
    "layer1/bias": "h.1.mlp.bias",
}


def by_function(name: str) -> str | Transposed:
    layer, own = name.removeprefix("layer").split("/")
    return Transposed(f"h.{layer}.mlp.weight") if own == "kernel" else f"h.{layer}.mlp.bias"


def assert_loaded(session: Any) -> None:
    for variable in tf.global_variables():
        layer = int(variable.op.name[5])
        expected = (KERNEL if "kernel" in variable.op.name else BIAS) + layer
        np.testing.assert_array_equal(session.run(variable), expected)


def write(path: Path, found: dict[str, np.ndarray]) -> str:
    safetensors.numpy.save_file(found, path)
    return str(path)


@pytest.mark.parametrize("mapping", [PAIRS, BY_NAME, by_function], ids=["pairs", "dict", "function"])
def test_variables_get_the_tensors_that_the_mapping_names(graph: Any, mapping: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", tensors())
    with tf.Session() as session:
        with tf.Graph().as_default():  # the session's graph counts
            load(path, mapping, session)
        assert_loaded(session)
    graph.finalize()
    with tf.Session() as session:  # the default session
        load(Path(path), mapping)
        assert_loaded(session)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrower_floats_are_widened(graph: Any, dtype: Any, tmp_path: Path) -> None:
    with tf.Session() as session:
        load(write(tmp_path / "a.safetensors", tensors(dtype)), PAIRS, session)
        assert_loaded(session)


def directory_of_two_files(path: Path) -> Path:
    """As transformers writes them."""
    path.mkdir()
    names = {key: f"model-0000{int(key[2]) + 1}-of-00002.safetensors" for key in tensors()}
    for name in set(names.values()):
        write(path / name, {key: value for key, value in tensors().items() if names[key] == name})
    index = {"metadata": {"total_size": 128}, "weight_map": names}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_a_directory_has_one_file_or_an_index(graph: Any, tmp_path: Path) -> None:
    with tf.Session() as session:
        load(directory_of_two_files(tmp_path / "two"), PAIRS, session)
        assert_loaded(session)
    (tmp_path / "one").mkdir()
    write(tmp_path / "one" / "model.safetensors", tensors())
    with tf.Session() as session:
        load(tmp_path / "one", PAIRS, session)
        assert_loaded(session)
        (tmp_path / "none").mkdir()
        with pytest.raises(tf.errors.NotFoundError, match=r"expected model\.safetensors or .*neither"):
            load(tmp_path / "none", PAIRS, session)
        with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
            load(tmp_path / "nowhere", PAIRS, session)


@pytest.mark.parametrize("layout", [["tp", None], [None, "tp"]])
def test_with_layouts_each_device_reads_its_part(layout: list[Any], tmp_path: Path) -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("tp", 3)])).scope():
            kernel = tf.get_variable("kernel", [3, 4], layout=layout)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
            load(write(tmp_path / "t", {"w": KERNEL.T.copy()}), {kernel: Transposed("w")}, session)
            np.testing.assert_array_equal(session.run(kernel), KERNEL)
            load(write(tmp_path / "a", {"w": KERNEL + 1}), {kernel: "w"}, session)
            np.testing.assert_array_equal(session.run(kernel), KERNEL + 1)


def test_other_orders_of_dimensions(tmp_path: Path) -> None:
    """A convolution's filter: PyTorch has output and input channels first."""
    value = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(5, 4, 2, 3)
    with tf.Graph().as_default():
        w = tf.get_variable("w", [2, 3, 4, 5])
        with tf.Session() as session:
            load(write(tmp_path / "a", {"w": value}), {"w": Transposed("w", (2, 3, 1, 0))}, session)
            np.testing.assert_array_equal(session.run(w), value.transpose(2, 3, 1, 0))


def test_all_that_does_not_fit_is_named_at_once_and_no_variable_changes(graph: Any, tmp_path: Path) -> None:
    found = tensors() | {"h.0.attn.mask": np.ones(2, np.float32), "h.1.mlp.bias": BIAS.astype(np.float64)}
    mapping = {
        "layer0/kernel": "h.0.mlp.weight",
        "layer0/bias": "h.0.mlp.bias",
        "layer1/kernel": "h.1.mlp.wieght",
        "layer1/bias": "h.1.mlp.bias",
        "layer2/bias": "h.2.mlp.bias",
    }
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(tf.global_variables())
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            load(write(tmp_path / "a", found), mapping, session)
        for one, other in zip(before, session.run(tf.global_variables()), strict=True):
            np.testing.assert_array_equal(one, other)
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("6 do not fit:")
    assert [line.strip() for line in lines] == [
        "variable 'layer2/bias': there is none in the graph. Nearest: layer1/bias, layer0/bias",
        "variable 'layer0/kernel' has shape (3, 4); tensor 'h.0.mlp.weight' has [4, 3]. "
        "Transposed(tensor='h.0.mlp.weight', perm=None) fits",
        "variable 'layer1/kernel': there is no tensor 'h.1.mlp.wieght'. "
        "Nearest: h.1.mlp.weight, h.0.mlp.weight, h.1.mlp.bias",
        "variable 'layer1/bias' is float32; tensor 'h.1.mlp.bias' is float64",
        "tensor 'h.0.attn.mask': no variable gets it",
        "tensor 'h.1.mlp.weight': no variable gets it",
    ]


def test_a_dict_that_forgets_a_variable(graph: Any, tmp_path: Path) -> None:
    mapping = dict(BY_NAME)
    del mapping["layer1/bias"]
    with tf.Session(graph=graph) as session:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            load(write(tmp_path / "a", tensors()), mapping, session)
    _, *lines = str(caught.value).splitlines()
    assert [line.strip() for line in lines] == [
        "tensor 'h.1.mlp.bias': no variable gets it",
        "variables that the mapping does not name: layer1/bias",
    ]


def test_tensors_that_no_variable_needs_are_ignored_on_demand_and_none_keeps_a_value(
    graph: Any, tmp_path: Path
) -> None:
    path = write(tmp_path / "a", tensors() | {"h.0.attn.mask": np.ones(2, np.float32)})
    with tf.Session() as session:
        load(path, PAIRS, session, ignore=[r".*\.mask"])
        assert_loaded(session)
        session.run([v.assign(tf.zeros_like(v)) for v in tf.global_variables()])
        load(path, [(r"layer1/.*", None), *PAIRS], session, ignore=[r".*\.mask", r"h\.1\..*"])
        assert session.run(tf.global_variables()[1]).tolist() == BIAS.tolist()
        assert not session.run(tf.global_variables()[3]).any()
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'layer1/bias': the mapping has no name"):
            load(path, PAIRS[:1], session)


def test_a_perm_must_be_one(graph: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"w": KERNEL})
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=r"perm=\(0, 0\)"):
        load(path, {"layer0/kernel": Transposed("w", (0, 0))}, session)


@pytest.mark.parametrize("mapping", [None, "kernel", 3, [1], [("(", "a")], {"layer0/bias": 3}])
def test_a_mapping_of_another_kind_is_refused(graph: Any, mapping: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a", tensors())
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="load_safetensors: expected"),
    ):
        load(path, mapping, session)


@pytest.mark.parametrize(
    ("mapping", "ignore", "text"),
    [
        (
            [("layer(.)/bias", r"h.\2")],
            [],
            r"a name with groups of 'layer\(\.\)/bias'; got 'h\.\\\\2': invalid",
        ),
        ([("layer(.)/bias", Transposed(r"h.\2"))], [], "a name with groups of"),
        (
            {"layer0/bias": "h.0.mlp.bias", "layer0/bias:0": "h.1.mlp.bias"},
            [],
            "0/bias': the mapping names it twice",
        ),
        ({}, "h.*", "ignore: expected a list of regular expressions; got 'h.*': a text alone"),
        ({}, ["("], r"ignore: expected a list of regular expressions; got \['\('\]"),
    ],
)
def test_names_that_nothing_has(graph: Any, mapping: Any, ignore: Any, text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", tensors())
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=text):
        load(path, mapping, session, ignore=ignore)


def test_a_session_is_needed(graph: Any, tmp_path: Path) -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected a session; got none"):
        load("a", PAIRS)
    with pytest.raises(TypeError, match="expected a session; got 3"):
        load("a", PAIRS, 3)


def test_damaged_files_are_data_loss(graph: Any, tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", tensors()))
    path.write_bytes(path.read_bytes()[:-1])
    with tf.Session() as session:
        with pytest.raises(tf.errors.DataLossError, match="a: expected a safetensors file"):
            load(path, PAIRS, session)
        directory = directory_of_two_files(tmp_path / "two")
        index = directory / "model.safetensors.index.json"
        more = {"h.2.mlp.bias": "model-00001-of-00002.safetensors"}
        more |= json.loads(index.read_text())["weight_map"]
        for weight_map, message in (
            ({"x": "../a"}, r"names of files beside it; got '\.\./a'"),
            ({"x": 3}, "names of files beside it; got 3"),
            (more, "expected the tensor 'h.2"),
        ):
            index.write_text(json.dumps({"weight_map": weight_map}))
            with pytest.raises(tf.errors.DataLossError, match=message):
                load(directory, PAIRS, session)
        for text in ("", "{}", "[]", '{"weight_map": 3}'):
            index.write_text(text)
            with pytest.raises(tf.errors.DataLossError, match="expected a weight_map in JSON"):
                load(directory, PAIRS, session)


def test_patterns_are_of_the_model_s_variables_not_the_optimizer_s(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"fc.weight": np.full((2, 3), 7, np.float32)})
    with tf.Graph().as_default():
        w = tf.get_variable("layer0/w", [2, 3])
        tf.train.AdamOptimizer().minimize(tf.reduce_sum(tf.square(w)))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            tf.train.load_safetensors(path, [(r"layer(\d+)/(.*)", "fc.weight")], session)
            np.testing.assert_array_equal(session.run(w), np.full((2, 3), 7))
