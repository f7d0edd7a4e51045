"""Input pipelines: a `Dataset` describes elements, an `Iterator` feeds them to the graph.

    dataset, experimental                   `Dataset`; ``data.experimental``
    node, spec                              a dataset as a tree of nodes; its elements' structure
    sources, pipeline, batching, windows    the nodes (host only)
    traced                                  functions passed to map, filter, flat_map, traced to graphs
    record_files                            the nodes that read files
    background                              the only two users of threads: read-ahead, parallel map
    choosing                                the nodes of data.experimental
    options                                 `Options`, which change no element
    auto_shard                              one worker's part of a dataset
    iterator                                the session resource over the tree; get_next

Nothing is read before a session requests an iterator's first element.
"""

from typing import Any

from flowrt.data import experimental as experimental
from flowrt.data.dataset import Dataset as Dataset
from flowrt.data.dataset import FixedLengthRecordDataset as FixedLengthRecordDataset
from flowrt.data.dataset import TextLineDataset as TextLineDataset
from flowrt.data.dataset import TFRecordDataset as TFRecordDataset
from flowrt.data.iterator import Iterator as Iterator
from flowrt.data.iterator import get_output_classes as get_output_classes
from flowrt.data.iterator import get_output_shapes as get_output_shapes
from flowrt.data.iterator import get_output_types as get_output_types
from flowrt.data.iterator import make_initializable_iterator as make_initializable_iterator
from flowrt.data.iterator import make_one_shot_iterator as make_one_shot_iterator
from flowrt.data.options import Options as Options
from flowrt.data.pipeline import AUTOTUNE as AUTOTUNE
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("data")
