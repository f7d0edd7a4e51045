"""ONNX's own backend suite: every case passes, is refused by name, or is listed here with its reason."""

from __future__ import annotations

import functools
import glob
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from flowrt.errors import OpError
from flowrt.onnx import backend
from flowrt.onnx.importer import check_operations
from tests.example_runs import ROOT

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PARTS = 4
MOST_OTHERS = 30
"""Cases that are known not to agree."""
MOST_REFUSED = 64
"""Cases of 2,024 that may be missing, those included."""

RANDOM = {
    "test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed", "test_bernoulli_expanded",
    "test_bernoulli_double_expanded", "test_bernoulli_seed_expanded", "test_training_dropout",
    "test_training_dropout_mask", "test_training_dropout_default", "test_training_dropout_default_mask",
}  # fmt: skip
"""The numbers that NumPy draws."""

ROUNDED = {
    "test_attention_4d_causal_fp16", "test_attention_4d_causal_fp16_expanded", "test_dft_inverse",
    "test_dft_inverse_opset19",
}  # fmt: skip
"""The reference rounds more than flowrt, by more than the case allows."""

OTHERS = {"test_loop16_seq_none"}
"""A sequence in an optional: the runner cannot compare what it has itself."""

DOCS = ROOT / "docs" / "models.md"


def listed() -> dict[str, int]:
    """The operations that the guide lists as refused, with the number of cases of each."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", DOCS.read_text("utf-8"), re.MULTILINE)
    return {name: int(count) for name, count in rows}


@functools.cache
def cases(kind: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference, which divides by zero
        return list(load_model_tests(kind=kind))


def model_of(case: Any) -> Any:
    return onnx.load(Path(case.model_dir, "model.onnx")) if case.model is None else case.model


def run(case: Any) -> None:
    model = model_of(case)
    sets = case.data_sets if case.model is not None else stored(case.model_dir, model)
    prepared = backend.prepare(model)
    for inputs, outputs in sets:
        found = prepared.run([array(each) for each in inputs])
        expected = [array(each) for each in outputs]
        Runner.assert_similar_outputs(expected, list(found), case.rtol, case.atol, case.model_dir)


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def stored(folder: str, model: Any) -> list[tuple[list[Any], list[Any]]]:
    def read(directory: str, kind: str, infos: Any) -> list[Any]:
        found = []
        for i, info in zip(range(len(glob.glob(f"{directory}/{kind}_*.pb"))), infos, strict=False):
            data = Path(directory, f"{kind}_{i}.pb").read_bytes()
            if info.type.HasField("sequence_type"):
                found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
            else:
                found.append(onnx.TensorProto.FromString(data))
        return found

    directories = sorted(glob.glob(f"{folder}/test_data_set*"))
    return [(read(d, "input", model.graph.input), read(d, "output", model.graph.output)) for d in directories]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", [pytest.param("node", marks=pytest.mark.slow), *KINDS[1:]])
def test_the_suite(kind: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case passes, or needs an operation that the guide lists."""
    monkeypatch.setenv("FLOWRT_JIT", "off")
    wrong = {}
    for case in cases(kind)[part::PARTS]:
        if case.name in RANDOM | ROUNDED | OTHERS:
            continue
        try:
            run(case)
        except OpError as error:
            if not missing_in(case) & set(listed()):
                wrong[case.name] = str(error)[:300]
        except AssertionError as error:
            wrong[case.name] = str(error)[:300]
    assert wrong == {}


def missing_in(case: Any) -> set[str]:
    """The operations of a case that are not supported."""
    try:
        check_operations(model_of(case))
    except OpError as error:
        return set(re.findall(r"'s (\w+) \(opset", str(error)))
    return set()


@pytest.mark.slow
def test_the_guide_lists_all_that_is_refused() -> None:
    """Generated: `Counter` of what `missing_in` gives for all cases."""
    found = Counter(name for kind in KINDS for case in cases(kind) for name in missing_in(case))
    assert found == listed()
    assert sum(found.values()) + len(RANDOM | ROUNDED | OTHERS) <= MOST_REFUSED


@pytest.mark.slow
def test_what_is_left_out_is_listed_for_a_reason() -> None:
    names = {case.name for kind in KINDS for case in cases(kind)}
    assert names >= RANDOM | ROUNDED | OTHERS
    assert len(RANDOM | ROUNDED | OTHERS) < MOST_OTHERS
