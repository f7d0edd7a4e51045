"""Views of graphs: as built, as compiled, as placed; for people and for viewers.

    Session | Graph | GraphDef or event file | running worker
        -> sources             Source               what is shown; compile_request: the step and plan
           script                                   a script's steps
           foreign, foreign_specs                   GraphDefs with unknown ops
        -> stages, from_parts  GraphView (view)     after each pass; nodes, edges and groups as pure data
           step_summary                             parameters, FLOP and bytes by scope
           stored_form                              as a GraphDef has it, to compare two
           op_facts                                 times and compiled code per operation
           laid_out                                 the global graph in its layouts over a mesh
           roles                                    what is no part of the model: gradients, optimizer, ...
           training                                 losses, and the variables that the optimizer updates
        -> folding             GraphView            focus, closed groups, like scopes as one
        -> layout, overview    boxes and SVG        html, page_data, page: the HTML page
        -> notebook            an object's facts as a card, the HTML page in a frame
        -> formats             bytes                one module per format; target: the output file

    StepStats -> measured_schedule -> Replay of a pipeline's schedule -> schedule_picture -> SVG

`export` runs the whole pipeline; `explain` prints where everything runs and why, `pass_changes` what each
stage of the compile changed, `explain_layouts` the layouts of tensors over a mesh. Nothing here runs an
operation, and no format embeds a constant above 1 KiB.
"""

from flowrt.viz.explain import explain
from flowrt.viz.explain_layouts import explain_layouts
from flowrt.viz.export import export
from flowrt.viz.folding.fold import focus, fold
from flowrt.viz.folding.series import with_series
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.from_parts import view_of
from flowrt.viz.notebook.cards import card
from flowrt.viz.notebook.inline import Inline, show
from flowrt.viz.overview import write_graph_picture
from flowrt.viz.stages import Change, Stage, stages
from flowrt.viz.step_summary import ScopeSummary, step_summary, summary_table
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, GroupKind, GroupView, NodeView, TensorView

__all__ = [
    "card",
    "Change",
    "EdgeKind",
    "EdgeView",
    "explain",
    "explain_layouts",
    "export",
    "focus",
    "fold",
    "FORMATS",
    "GraphView",
    "GroupKind",
    "GroupView",
    "Inline",
    "NodeView",
    "show",
    "ScopeSummary",
    "Stage",
    "stages",
    "step_summary",
    "summary_table",
    "TensorView",
    "view_of",
    "with_series",
    "write_graph_picture",
]
