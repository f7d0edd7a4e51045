"""Variables with a copy per replica (distributed_variables) or cut into parts (partitioned_variable)."""
