"""GraphDef import, with TensorFlow 1's control flow converted to structured form.

read_graph_def         GraphDef files, with limits
v1_ops                 ops under their older names
op_adapters            ops that others say, and how their nodes change
older_spellings        those under other names or with other arguments
fused_spellings        those that converters fuse
import_nodes           one node of a GraphDef -> one operation
import_frames          Enter, Exit, NextIteration -> loops
import_branches        Switch, Merge -> branches
import_control_flow    both, nested
import_lists           TensorArrayV3, StackV2 -> lists
reference_ops          ops on reference variables
import_references      and their conversion to ops on handles
import_partitions      Send and Recv of partitioned graphs
import_graph_def       `import_graph_def`
"""
