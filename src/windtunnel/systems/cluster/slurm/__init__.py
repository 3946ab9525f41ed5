"""Policies driven on Slurm, by its own commands: nothing of its state is edited.

In: a cluster, jobs, a policy with fixed timers. Out: when each job really started, and where. Slurm knows delay
scheduling natively: ``sbatch --switches=1@TIME`` waits up to that time for a placement under one switch.
"""
