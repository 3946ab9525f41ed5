"""Serving on processors: how many instances of a model, with how many threads and inputs each (Packrat).

In: how long one instance takes by threads and batch, measured alone. Out: the split of a server's threads and of a
batch that answers soonest, and how long splits really take. Source: Packrat, ICML 2025. Not here: starting processes
(``measure``), receipts (``flights``).

Internal modules: ``instance``.
"""
