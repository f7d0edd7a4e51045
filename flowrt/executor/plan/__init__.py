"""A plan: a request compiled for certain feed shapes, ready to run.

instance          its programs on their own memory, for one step at a time
plan              `Plan`: compiles, keeps instances, runs a step
plan_description  the plan as text
size_feeds        feeds that decide shapes by their values, which runs may repeat
tiers             tiered compilation: kernels first, compiled loops swapped in later
"""
