"""Clusters of many jobs (row 5): policies of scheduling register here, one file each.

In: the state of a cluster. Out: decisions. May not enter: how jobs are run.
"""

from windtunnel import registry

registry.discover(__name__)
