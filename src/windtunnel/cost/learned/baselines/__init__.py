"""Earlier cost models on the same program sets (room cost): split in, a model with ``predict`` out.

Each has ``predict(programs, samples)`` in seconds. Models that only rank are given the fastest time of each task, also
of those for the verdict, to become seconds: an advantage that no other model has. Not here: CDMPP itself.
"""
