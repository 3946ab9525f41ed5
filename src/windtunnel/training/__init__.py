"""Real training of one model by several processes (row 6): the runtime of pipelines that were planned."""
