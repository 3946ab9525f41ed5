"""Clusters of many jobs: where each is put, who waits, what that costs.

In: a cluster, jobs, how fast each model is on each placement, a policy. Out: what happens to every job. Policies of
scheduling register here, one function each. May not enter: how jobs are run.

Internal modules: ``engine``, ``offers``, ``python_policy``, ``queue_order``, ``running``, ``sharing``, ``state``,
``timers``.
"""
