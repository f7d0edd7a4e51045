"""Ops that ONNX cannot say, and what to do instead."""

from __future__ import annotations

from flowrt.graph.op_def import Effect, OpDef

_STATE = "ONNX has no state: export what is computed from variables, not what changes them"
_LAYOUTS = "made by meshes and layouts: export the graph of one device"
_STRINGS = "ONNX has no such operation on strings: compute it before or behind the model"
_MATRICES = "ONNX has no decompositions of matrices: compute it before or behind the model"
_SPECIAL = "ONNX has no such function: write it with those it has"
_COMPLEX = "ONNX has no operations on complex numbers: use two real tensors"
_RANDOM = "ONNX's random numbers are others: feed the numbers as an input"
_GRADIENT = "ONNX has no such derivative: export the forward pass"
_PYTHON = "Python cannot be in a file: compute it before or behind the model"
_SIZES = "ONNX has no such operation: write it with gathers and scatters"
_IMAGES = "it is not exported yet: prepare images before the model"
_QUANTIZED = "it is not exported yet: export the graph without fake quantization"
_TREES = "it is not exported yet: use a converter of trees, on the variables of a checkpoint"
_SUMMARY = "summaries are for TensorBoard: leave them out of the outputs"

ABSENT: dict[str, tuple[str, ...]] = {
    _TREES: (
        "BoostedTreesContributions", "BoostedTreesGrowLayer", "BoostedTreesLayerStatistics",
        "BoostedTreesLogits", "BoostedTreesMoveBias", "BoostedTreesTrainingLogits", "ForestPredict",
        "QuantileBuckets",
    ),
    _LAYOUTS: ("_RowsOfVariable", "_UnitMemory", "LocalShards", "GatherAt", "SegmentSumAt", "CutAs",
               "OverAxis", "GatherTogether", "TakeApart"),
    _COMPLEX: ("Real", "Imag", "ComplexAbs", "Angle", "Conj", "Complex", "ConjugateTranspose",
               "FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D", "RFFT", "RFFT2D", "RFFT3D", "IRFFT",
               "IRFFT2D", "IRFFT3D"),
    _IMAGES: (
        "ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "CropAndResize", "AdjustHue",
        "AdjustSaturation", "RGBToHSV", "HSVToRGB", "CombinedNonMaxSuppression", "ResizeArea",
        "DrawBoundingBoxesV2", "DecodeBmp", "DecodeGif", "DecodeImage", "DecodeJpeg", "DecodePng",
        "EncodeJpeg", "EncodePng",
    ),
    _QUANTIZED: (
        "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxArgsGradient", "FakeQuantWithMinMaxVars",
        "FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannel",
        "FakeQuantWithMinMaxVarsPerChannelGradient",
    ),
    _STRINGS: (
        "StringLower", "StringUpper", "StringStrip", "StringLength", "Substr", "StaticRegexReplace",
        "DecodeWav", "EncodeWav", "SequenceSteps", "ReduceJoin", "SparseCross", "DecodeBase64", "DecodeRaw",
        "DecodeCSV", "EncodeBase64",
        "ParseExample", "ParseSingleExample",
        "StringFormat", "StringNGrams", "StringSplit", "StringSplitV2", "StringToHashBucketFast",
        "ShardedFilename", "ShardedFilespec",
    ),
    _MATRICES: (
        "MatrixInverse", "Cholesky", "MatrixSolve", "MatrixTriangularSolve", "Qr", "Svd", "SelfAdjointEigV2",
        "Lu", "MatrixSquareRoot", "MatrixLogarithm", "TridiagonalSolve",
    ),
    _SPECIAL: (
        "Erfinv", "Lgamma", "Digamma", "Polygamma", "Zeta", "Igamma", "Igammac", "IgammaGradA",
        "RandomGammaGrad", "Betainc",
    ),
    _RANDOM: (
        "RandomPosition", "RandomUniformAt", "RandomStandardNormalAt", "TruncatedNormalAt",
        "RandomUniformIntAt", "RandomShuffleAt", "MultinomialAt", "RandomGammaAt", "RandomPoissonV2At",
        "StatelessMultinomial", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounter",
        "StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniform",
        "StatelessRandomUniformV2", "StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2",
        "StatelessRandomUniformInt", "StatelessRandomUniformIntV2", "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
    ),
    _GRADIENT: ("ConcatOffset", "CTCLoss", "LRNGrad", "CropAndResizeGradBoxes", "CropAndResizeGradImage"),
    _PYTHON: ("PyFunc", "PyFuncStateless", "Print", "PrintV2", "Timestamp"),
    _SIZES: (
        "CTCBeamSearchDecoder", "CTCGreedyDecoder", "Bitcast", "EditDistance",
        "DynamicStitch", "ListDiff", "HistogramFixedWidth", "TensorListConcatV2", "TensorListSplit",
        "TensorListScatterIntoExistingList", "SpaceToBatchND", "BatchToSpaceND", "MaxPoolWithArgmax",
        "DenseBincount", "SparseReshape", "SparseFillEmptyRows", "SetSize", "SparseToSparseSetOperation",
    ),
    _SUMMARY: ("AudioSummaryV2",
               "ScalarSummary", "HistogramSummary", "TensorSummaryV2", "ImageSummary", "MergeSummary"),
}  # fmt: skip
"""The ops without effects, by reason; those with effects need no list."""

_REASONS = {name: reason for reason, names in ABSENT.items() for name in names}


def why_absent(op: OpDef) -> str:
    """The text behind the op's name in the error of an export."""
    if op.name in _REASONS:
        return _REASONS[op.name]
    if op.effect is Effect.RANDOM:
        return _RANDOM
    if op.effect is Effect.SOURCE:
        return "expected a placeholder that is one of the inputs"
    return "ONNX has no such operation" if op.effect is Effect.PURE else _STATE
