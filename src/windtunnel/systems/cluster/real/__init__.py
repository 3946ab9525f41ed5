"""A small cluster of real processes and real links on this host.

In: a cluster, jobs, a policy. Out: the run as it really was. A slot is a process in the network namespace of its
machine; a job computes by waiting, so that no core is short, and really adds its gradients up over shaped links.

Internal modules: ``slot``.
"""
