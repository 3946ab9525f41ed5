"""Training steps as genomes: the same edits and the same search, over operators of tensors.

Internal modules: ``worker``.
"""
