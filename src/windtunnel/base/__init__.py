"""Small helpers that each layer uses: files, documents, tables of columns, progress, Pareto fronts, optional extras."""
