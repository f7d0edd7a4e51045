"""Training steps of scripts, as they would run under a strategy, and how long their operations take.

recorded      the training step of a script, without layouts
applied       the same with the attributes that a strategy gives
fewer_blocks  a step with some of its equal blocks left out
device_parts  what one device of each class would run, compiled without the devices
entries       what the thread of a device does, in order, and the works that these are
emitted       from these parts to class programs
assembled     class programs of all turns, from parts with few of them
costs         seconds of an operation, from a measured table or from rates
measure       the table: each distinct operation of a step, in the program of a device
copies        copies of the process that run programs meanwhile
lone_member   a group of one, for programs that are run without the others
stage_room    the memory that a choice leaves to the stages of a pipeline

script -> `Recorded` -> `applied`, a strategy's attributes -> `device_parts` -> class programs: `emitted`
from a step with few turns, or `assembled` from few of many
"""
