"""Small helpers that each layer uses: files, documents, tables, progress, Pareto fronts, optional extras."""
