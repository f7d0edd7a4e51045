"""The script's side of elastic jobs: see `flowrt.distribute.elastic` for the rules.

elastic_run       ``run_elastic(train)``: calls ``train`` for each membership epoch
elastic_job       `ElasticJob`, the argument of ``train``: its session, its data
commits           state in host memory, sent to all members at the beginning of an epoch
commit_hook       commits after steps, and ends the epoch
membership        source of the epochs: the coordinator in ``flowrt-run``, or a fixed cluster
"""
