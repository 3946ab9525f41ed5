"""Real training of one model by several processes (row 6): the runtime of pipelines that were planned.

In: models, data and a plan. Out: runs. Strategies of synchronization register here, one file each.
"""

from windtunnel import registry

registry.discover(__name__)
