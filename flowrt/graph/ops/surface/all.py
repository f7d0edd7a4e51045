"""Importing this module defines every op."""

from flowrt.graph.construction import constant
from flowrt.graph.functions import control_flow
from flowrt.graph.ops.array import (
    bitcast,
    concat_and_split,
    gather_scatter,
    padding,
    parts,
    ranges,
    reductions,
    scans,
    scatter_rows,
    segments,
    selection,
    sets,
    slicing,
    sorting,
    sparse_rows,
    statistics,
    tile_and_reverse,
)
from flowrt.graph.ops.base import (
    filling,
    identities,
    indexing,
    kernel_output,
    shape_manipulation,
    sparse_tensor,
)
from flowrt.graph.ops.collective import (
    collective_gradients,
    collective_shapes,
    collectives,
    group_transfer,
    over_axis,
    together,
    transfer,
)
from flowrt.graph.ops.elementwise import (
    arithmetic,
    bitwise,
    comparison,
    complex_parts,
    division,
    incomplete,
    incomplete_kernels,
    math,
    narrow_cast,
    special,
    special_kernels,
)
from flowrt.graph.ops.linalg import decompositions, einsum, fourier, matmul, matrix_parts, spectral
from flowrt.graph.ops.lists import stacked_lists, tensor_lists
from flowrt.graph.ops.nn import (
    activations,
    batch_norm,
    bias,
    boxes,
    colors,
    combined_boxes,
    conv,
    conv_functions,
    crops,
    ctc,
    depthwise_conv,
    fake_quant,
    losses,
    moments,
    normalization,
    norms,
    picture_boxes,
    pooling,
    pooling_places,
    resize,
    sharded_softmax,
    softmax,
    space_batch,
    windows,
)
from flowrt.graph.ops.random import philox, random_ops, sampling, stateless
from flowrt.graph.ops.state import (
    accumulators,
    infeed,
    iterators,
    lookup,
    optimizer_updates,
    parameter_shards,
    queues,
    readers,
    session_tensors,
    staged_iterators,
    update_loops,
    variable_ops,
)
from flowrt.graph.ops.surface import operators, slice_assignment
from flowrt.graph.ops.text import (
    assertions,
    checkpoint_files,
    crossing,
    csv_lines,
    edit_distance,
    examples,
    files,
    formatting,
    hashing,
    image_codecs,
    numerics,
    python_calls,
    sequence_steps,
    splitting,
    strings,
    summaries,
    wave_files,
    words,
)
from flowrt.graph.ops.trees import boosted_trees, quantile_buckets
