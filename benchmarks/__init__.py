"""The side-by-side benchmarks: ``python -m benchmarks --peers ENVIRONMENT`` or ``--only-ours``.

`cases` holds the work, written once against TensorFlow 1's names, `peers_torch` and `peers_jax` the same work
for the others, `inputs` the numbers they share. `worker` times one case on one side in a process of its own;
`sides` starts it, `report` makes the table of medians, ratios and `bars`, `plots` the pictures. Each of
`scaling`, `devices`, `allocator`, `gradients` and `names` is a program by itself.
"""
