"""What a task records for people.

flight_recorder  the last rendezvous events of a task
missing_sender   who kept whom waiting, from these records
observer         when records are written
stalls           steps that make no progress
"""
