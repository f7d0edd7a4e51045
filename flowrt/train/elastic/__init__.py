"""The script's side of elastic jobs: see `flowrt.distribute.elastic` for who is in the group, and why.

elastic_run       ``run_elastic(train)``: calls ``train`` for each membership epoch
elastic_job       `ElasticJob`, the argument of ``train``: its session, its data
commits           state in host memory, sent to all members at the beginning of an epoch
commit_hook       commits after steps, and ends the epoch
membership        who tells the epochs: the coordinator of ``flowrt-run``, or a fixed cluster
"""
