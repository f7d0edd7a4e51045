"""Replicas as threads that run one at a time.

replica_context, strategy_context  a script's queries for its context
replica_collections                collections per replica
replica_threads                    several replicas
"""
