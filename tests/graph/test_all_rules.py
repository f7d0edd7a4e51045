"""Every sharding rule against its op's kernel: what is computed on parts, put together, is the whole.

For each sample of each op, each factor that may be cut and 2 and 3 parts: the inputs are cut along the
factor, the op is applied to each part, and the outputs are joined, or reduced where the factor is contracted.
A rule that cuts where it must not cannot pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flowrt import dtypes
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.layouts.derived_rules import arguments_of, is_view, reshaped, rule_of
from flowrt.graph.layouts.sharding_rule import Dims, ShardingRule, dim_of
from flowrt.graph.op_def import OpDef, Sample, op_def, registered_ops, sample
from flowrt.graph.ops.surface import all as all_ops
from flowrt.graph.partial_value import as_host_value
from tests.each import of_each_op
from tests.graph.evaluation import assert_equal, values_of
from tests.graph.test_all_ops import build, feeds_of, flat_inputs

assert all_ops

REDUCED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def cases() -> list[Any]:
    return [
        pytest.param(op, each, id=f"{op.name}-{position}")
        for op in registered_ops().values()
        if op.is_pure
        for position, each in enumerate(op.samples(np.random.default_rng(0)))
    ]


def rule_for(operation: Operation, values: Sequence[Any]) -> ShardingRule | None:
    return rule_of(
        operation.op_def,
        operation.node.attrs,
        [t.spec for t in operation.inputs],
        [t.spec for t in operation.outputs],
        lambda i: as_host_value(np.asarray(values[i])),
    )


def run(op: OpDef, each: Sample) -> list[Any]:
    with Graph():
        operation, flat = build(op, each)
        return values_of(list(operation.outputs), feeds_of(flat, flat_inputs(op, each)))


def with_inputs(op: OpDef, each: Sample, flat: Sequence[Any]) -> Sample:
    """``each`` with other flat inputs."""
    values = iter(flat)
    inputs = [
        tuple(next(values) for _ in v) if a.is_list else next(values)
        for a, v in zip(op.inputs, each.inputs, strict=True)
    ]
    return sample(*inputs, **each.attrs)


def part(value: Any, dims: Dims, factor: int, parts: int, number: int) -> Any:
    dim = dim_of(factor, dims)
    return value if dim is None else np.array_split(np.asarray(value), parts, axis=dim)[number]


def cuts(rule: ShardingRule) -> Iterator[tuple[int, int]]:
    for factor in range(len(rule.factors)):
        for parts in (2, 3):
            if rule.may_cut(factor, parts):
                yield factor, parts


@of_each_op(cases())
def test_parts_make_the_whole(op: OpDef, each: Sample) -> None:
    with Graph():
        operation, _ = build(op, each)
        attrs = operation.node.attrs
        values = flat_inputs(op, each)
        rule = rule_for(operation, values)
        shape = operation.outputs[0].spec.shape if operation.outputs else ()
    if rule is None:
        return
    whole = run(op, each)
    for factor, count in cuts(rule):
        local: list[list[Any]] = []
        for number in range(count):
            flat = [part(v, d, factor, count, number) for v, d in zip(values, rule.inputs, strict=True)]
            part_shape = part(np.empty(shape), rule.outputs[0], factor, count, number).shape
            for i, argument in enumerate(arguments_of(op, attrs)):
                if argument.is_shape:
                    flat[i] = np.array(part_shape, np.asarray(values[i]).dtype)
            done, scale, local_each = op, 1, with_inputs(op, each, flat)
            if op.reduction == "mean" and dim_of(factor, rule.outputs[0]) is None:
                done, scale = op_def("Sum"), np.asarray(values[0]).size // max(whole[0].size, 1)
            if is_view(op):  # lowered as a Reshape: a Squeeze may not drop a dimension cut to size 1
                done, local_each = op_def("Reshape"), sample(flat[0], np.array(part_shape, np.int32))
            results = run(done, local_each)
            with np.errstate(invalid="ignore"):  # the mean of nothing
                local.append([r if scale == 1 else r / scale for r in results])
        for position, expected in enumerate(whole):
            found = joined([each_part[position] for each_part in local], rule, position, factor)
            assert_same(
                found, expected, f"{op.name}: output {position}, factor {rule.factors[factor]}, {count} parts"
            )


def joined(parts: Sequence[Any], rule: ShardingRule, output: int, factor: int) -> Any:
    dim = dim_of(factor, rule.outputs[output])
    if dim is not None:
        return np.concatenate(parts, axis=dim)
    reduction = rule.factors[factor].reduction
    if not reduction:
        return parts[0]
    total = parts[0]
    for more in parts[1:]:
        total = REDUCED[reduction](total, more)
    return total


def assert_same(found: Any, expected: Any, what: str) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: {found.shape} in place of {expected.shape}"
    if dtypes.as_dtype(expected.dtype) in dtypes.INEXACT:
        digits = {2: 2e-2, 4: 2e-5, 8: 1e-12 if expected.dtype.kind == "f" else 2e-5, 16: 1e-12}
        tolerance = digits[expected.dtype.itemsize]
        wide = complex if expected.dtype.kind == "c" else float
        scale = np.max(np.abs(expected.astype(wide)), initial=1, where=np.isfinite(expected.astype(wide)))
        np.testing.assert_allclose(
            found.astype(wide), expected.astype(wide), tolerance, tolerance * scale, err_msg=what
        )
    elif expected.dtype.kind == "O":
        assert found.tolist() == expected.tolist(), what
    else:
        assert_equal(found, expected, what)


def test_enough_ops_can_be_cut() -> None:
    """A rule lost by accident would make its op whole, and nothing else would fail."""
    with_cut = set()
    for op in registered_ops().values():
        for each in op.samples(np.random.default_rng(0)) if op.is_pure else ():
            with Graph():
                operation, _ = build(op, each)
                rule = rule_for(operation, flat_inputs(op, each))
            if rule is not None and next(cuts(rule), None):
                with_cut.add(op.name)
    assert len(with_cut) >= 170, len(with_cut)
    assert {"MatMul", "Conv2D", "Softmax", "LayerNormGrad", "GatherV2", "Sum", "Reshape", "Split"} <= with_cut


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        ((8, 6), (2, 4, 6), "(f0 f1) f2 -> f0 f1 f2"),
        ((2, 4, 6), (8, 6), "f0 f1 f2 -> (f0 f1) f2"),
        ((1, 6), (6, 1, 1), "x0! f0 -> f0 y1! y2!"),
        ((6,), (2, 3), "(f0 f1) -> f0 f1"),
        ((6, 4), (4, 6), None),
        ((0, 2), (2, 0), None),
        ((), (1,), " -> y0!"),
    ],
)
def test_a_view_is_split_into_factors(
    source: tuple[int, ...], target: tuple[int, ...], rule: str | None
) -> None:
    assert reshaped(source, target) == rule


WITHOUT_RULE = {
    "of shapes and host values": {
        "BroadcastArgs", "BroadcastGradientArgs", "ConcatOffset", "InvertPermutation", "Rank", "Shape",
        "ShapeN", "Size",
    },
    "made of numbers, a constant in most steps": {"LinSpace", "Range"},
    "made in the layout of its readers": {
        "Fill", "MultinomialAt", "RandomGammaAt", "RandomPoissonV2At", "RandomShuffleAt",
        "RandomStandardNormalAt", "RandomUniformAt", "RandomUniformIntAt", "TruncatedNormalAt",
    },
    "drawn from a seed, whole": {
        "StatelessMultinomial", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounter",
        "StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniform",
        "StatelessRandomUniformV2", "StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2",
        "StatelessRandomUniformInt", "StatelessRandomUniformIntV2", "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
    },
    "of a size that only values determine": {
        "DynamicPartition", "DynamicStitch", "ListDiff", "NonMaxSuppressionByClass",
        "CTCBeamSearchDecoder", "CTCGreedyDecoder", "EditDistance",
        "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5",
        "SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd", "SegmentSum", "SparseFillEmptyRows",
        "SetSize", "SparseReshape", "SparseToDense", "SparseToSparseSetOperation", "Unique",
        "UniqueWithCounts", "Where",
    },
    "of whole trees, on the host": {
        "BoostedTreesContributions", "BoostedTreesGrowLayer", "BoostedTreesLayerStatistics",
        "BoostedTreesLogits", "BoostedTreesMoveBias", "BoostedTreesTrainingLogits", "ForestPredict",
        "QuantileBuckets",
    },
    "all dimensions together": {"Diag", "DiagPart"},
    "made when layouts have been lowered": {"GatherTogether", "TakeApart"},
    "gone once shapes are known": {"EnsureShape", "IdentityN"},
    "of files in memory, each a host's": {
        "AudioSummaryV2", "DecodeBmp", "DecodeCSV", "DecodeGif", "DecodeImage", "DecodeJpeg", "DecodePng",
        "DecodeWav", "EncodeJpeg", "EncodeWav",
        "EncodePng", "ParseExample", "ParseSingleExample",
    },
    "of texts and summaries, which are computed once": {
        "AsString", "CountNgrams", "DecodeBase64", "DecodeRaw", "DropWords", "EncodeBase64",
        "HistogramSummary", "ImageSummary", "MergeSummary", "ReduceJoin", "ScalarSummary",
        "ShardedFilename", "ShardedFilespec", "SequenceSteps", "SparseCross", "SplitStrings",
        "StaticRegexFullMatch", "StaticRegexReplace", "StringFormat", "StringJoin", "StringLength",
        "StringLower", "StringNGrams", "StringSplit", "StringSplitV2", "StringStrip",
        "StringToHashBucketFast", "StringToNumber", "StringUpper", "Substr", "TensorSummaryV2",
    },
    "of imported graphs, which run whole": {
        "AdjustHue", "AdjustSaturation", "BatchToSpaceND", "Bitcast", "CTCLoss",
        "CombinedNonMaxSuppression", "CropAndResize",
        "CropAndResizeGradBoxes", "CropAndResizeGradImage", "DrawBoundingBoxesV2", "ResizeArea",
        "DenseBincount", "FFT", "FFT2D", "FFT3D", "FakeQuantWithMinMaxArgs",
        "FakeQuantWithMinMaxArgsGradient", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsGradient",
        "FakeQuantWithMinMaxVarsPerChannel", "FakeQuantWithMinMaxVarsPerChannelGradient", "HSVToRGB",
        "IFFT", "IFFT2D", "IFFT3D", "IRFFT", "IRFFT2D", "IRFFT3D", "MaxPoolWithArgmax", "RFFT", "RFFT2D",
        "RFFT3D", "RGBToHSV", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor",
        "SpaceToBatchND",
    },
    "part of layouts itself": {"LocalShards", "OverAxis"},
    "of nothing": {"NoOp"},
}  # fmt: skip
"""Pure ops of which no call has a rule, by the reason."""


def test_every_other_op_has_a_rule() -> None:
    found = set()
    for op in registered_ops().values():
        samples = list(op.samples(np.random.default_rng(0))) if op.is_pure else []
        with Graph():
            calls = [(build(op, each)[0], flat_inputs(op, each)) for each in samples]
            if calls and all(rule_for(*call) is None for call in calls):
                found.add(op.name)
    assert found == set().union(*WITHOUT_RULE.values())
