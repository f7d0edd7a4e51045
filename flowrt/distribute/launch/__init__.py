"""Starting, watching and ending the tasks of a job.

supervision               when to stop and restart; decisions only
elastic_supervision       the same for workers of an elastic job
task_output               logs and console output of tasks
parent_watchdog           a program that dies with its parent
launcher                  ``flowrt-run``
local_cluster, ray_cluster  tasks of one host; Ray actors
check, drain              ``flowrt-worker --check`` and ``--drain``
cluster_watch             a watcher of all tasks, for ``flowrt top`` and ``flowrt profile``
"""
