"""Elastic jobs: the group of workers changes, and training goes on with those that are there.

    coordinator           members of the group; decisions only
    elastic_messages      what members and the coordinator tell each other
    coordinator_server    the coordinator of a job, in flowrt-run
    coordinator_client    a worker's end

The script's side is `flowrt.train.elastic`: ``run_elastic(train)`` calls ``train`` anew for each group.

    worker                                    coordinator (in the flowrt-run of the first host)
    Join {address}  ------------------------>  waits for all that may come, or a last call
                    <------------------------  Epoch {number, rank, addresses, commit}
    train(job): steps, commits
      a member is lost <---------------------  Change {why, at_once}: its groups end, steps raise
      or one comes, or leaves <--------------  Change {why}: ends at the next commit
    Ready {epoch, commit} ------------------>  when all that live have said so:
                    <------------------------  Epoch {number + 1, ...}
    Finished {commit} ---------------------->  when all have:
                    <------------------------  End

Terms. A *membership epoch* is the time from one forming of the group to the next change; its number is part
of all keys of groups, so that messages of an earlier one are refused. A *commit* is a copy, in host memory,
of all variables after a step that is known to be complete; its number is the global step. Between commits,
variables may be half updated: a failed step is discarded by going back to a commit.

The rules:

 1. The coordinator alone decides. It is not a worker, so any worker may die; if its host dies, the survivors
    make a checkpoint of their commit, from which the job starts again.
 2. Every change takes one path, whether a worker was killed, left, or came: all members go back to their last
    commit and are ready for the next epoch. So a worker that left early and one that was told late agree.
 3. The member with the highest commit becomes rank 0, and its state is sent to all others, always, also to
    those that have the same. (Members may be one commit apart: one got the last bytes of an all-reduce, the
    other did not. Both states are those of an undisturbed run.) Where nobody has a commit, the newest
    checkpoint counts, else the initial values.
 4. A survivor keeps its process: flowrt, its caches and its commit stay. The graph, the session, the strategy
    and the groups are built anew by calling ``train`` again: loss scales, shards of the data, parts of
    variables and layouts all come from the new size by the code that made them for the old one.
 5. Survivors go first, by rank; then those that came, in their order, up to the greatest size. Workers beyond
    that wait as hot spares, and are taken when a place is free.
 6. Each wait ends: a silent member is lost after ``FLOWRT_LOST_AFTER``, one that does not end its epoch, or a
    group too small, after ``FLOWRT_CONNECT_TIMEOUT``, and so does a job to which nobody has come when the
    workers of the first host have ended; a group that forms again and again without a commit, after
    `MAX_STALLS` times.
 7. A host with failed workers in `MAX_FAILURES` epochs is left out, if the others are enough.

What others do, and where it hurt: torchrun restarts all processes at each change, and state comes from
checkpoints; a lost node does not always cause a new rendezvous (pytorch#111646), and limits of restarts are
each agent's own (pytorch#147064). Horovod goes back to a commit in the same process, as here, but skips the
exchange of state where it thinks it needs none, which deadlocks with those that came (horovod#3494), and
counts failures before it knows all of them (horovod#1965). TorchFT takes state from the peer with the highest
step, as here.
"""
