"""Input pipelines: a `Dataset` describes elements, an `Iterator` hands them to the graph.

    dataset.py   Dataset's methods build a tree of nodes                         what TensorFlow's users see
    traced.py    the functions given to map, filter, flat_map: graphs of their own
    iterator.py  the tree behind a resource of the session, get_next in the graph
    node.py      what a node is; sources, pipeline, batching, windows: the nodes (host only)
    background.py the two places with threads; spec: what elements look like

Nothing is read before a session asks an iterator for its first element.
"""

from typing import Any

from flowrt.data import experimental as experimental
from flowrt.data.dataset import Dataset as Dataset
from flowrt.data.dataset import TextLineDataset as TextLineDataset
from flowrt.data.iterator import Iterator as Iterator
from flowrt.data.iterator import get_output_classes as get_output_classes
from flowrt.data.iterator import get_output_shapes as get_output_shapes
from flowrt.data.iterator import get_output_types as get_output_types
from flowrt.data.iterator import make_initializable_iterator as make_initializable_iterator
from flowrt.data.iterator import make_one_shot_iterator as make_one_shot_iterator
from flowrt.data.pipeline import AUTOTUNE as AUTOTUNE
from flowrt.missing_names import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name("data", name, globals())
