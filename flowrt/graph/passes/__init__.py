"""The compiler's passes: pure functions from `Subgraph` to `Subgraph`.

Contract of a pass: the input is untouched; the *same object* comes back when nothing changed; unchanged
nodes are shared; feeds and targets keep their names, fetches may be redirected to an equal tensor; nodes
come back in topological order. A pass asks ops for the facts of their `OpDef`, with these exceptions that
every pass may name: Const, NoOp, Identity, Placeholder, the executor's own _Feed, _Send and _Recv, and
_Loop and _Case, the two forms of control flow. What becomes those, and what a collective becomes, is known
to the passes that lower them.

prepare     what a request needs: extract, lower, order effects, infer shapes; and extend an earlier request
optimise    fewer and cheaper operations
precision   products in a narrower dtype than the script's
layouts     the operations of every coordinate of a mesh
placement   a device for every node, and the cut into one subgraph a device
collective  sends, sums and copies in place of collectives
fusion      groups of operations that one compiled loop computes
pipeline    all of them in order, as a value, with the contract of each
"""
