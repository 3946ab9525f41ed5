"""Learned prices of tensor programs: loop nests in, times with intervals out.

Source: CDMPP (Hu et al., EuroSys 2024). Nothing here runs a program; ``programs/run`` builds and measures them.

Internal modules: ``statement_features``.
"""
