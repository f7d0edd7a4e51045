"""Replicas as threads that take turns.

replica_context, strategy_context  what a script asks about where it runs
replica_collections                collections per replica
inline_replica, replica_threads    one replica; several
"""
