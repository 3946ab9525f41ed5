"""One program for computation and communication (CoCoNet).

In: a training step as a program over tensors with layouts. Out: schedules that compute the same, their prices, and the
best of them run. Not here: capturing programs from scripts, algorithms of single collectives (``comm``).

The package exports nothing at its top; ``program``, ``transforms``, ``search``, ``plan`` and ``workloads`` are public.
"""
