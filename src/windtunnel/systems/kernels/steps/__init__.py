"""Training steps as genomes (room kernels): the same edits and the same search, over operators of tensors."""
