"""Variables: made, named, shared.

distribution_context  the strategy and replica that a thread builds for
graph_scopes          scopes and collections of the default graph, as functions
variable              `Variable`
imported_variable     variables of imported graphs
variable_creators     `variable_creator_scope`
variable_scope        `variable_scope`
get_variable          `get_variable`
partitioners          into how many parts TensorFlow would cut a variable
template              `make_template`
"""
