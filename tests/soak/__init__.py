"""A soak: eight tasks are disturbed at random for hours. The result must be that of an undisturbed run.

    make soak MINUTES=120            python -m tests.soak --minutes 120 [--seed 7] [--out runs/soak]

- `job`: what the tasks compute; in one process, undisturbed, it is the reference.
- `network`: proxies between the tasks, which delay bytes and flip bits.
- `tasks`: the processes, which are started again when they end.
- `faults`: what is done to them. A fault that did nothing is *missed*: it is no result.
"""
