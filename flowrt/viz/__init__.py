"""Looking at graphs: what was built, what the compile made of it, where it runs; for people and for viewers.

    Session | Graph | GraphDef or event file | running worker
        -> source_of    Source               what is looked at: `question` says for which fetches and devices
        -> parts        {device: Subgraph}   logical, placed or partitioned
           stages       list[Stage]          after each pass of the real compile
        -> view_of      GraphView            nodes, edges and groups as pure data
        -> focus, fold  GraphView            cut down, and with closed groups
        -> encode       bytes                one module a format (`flowrt.viz.formats`)

`export` does all of it, `explain` says in words where everything runs and why. Nothing here runs an
operation, and no format embeds a constant above 1 KiB.
"""

from flowrt.viz.explain import explain
from flowrt.viz.export import export
from flowrt.viz.focus import focus
from flowrt.viz.fold import fold, with_series
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.from_parts import view_of
from flowrt.viz.overview import write_graph_picture
from flowrt.viz.stages import Change, Stage, stages
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, GroupKind, GroupView, NodeView, TensorView
