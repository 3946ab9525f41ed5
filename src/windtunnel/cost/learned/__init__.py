"""Learned prices of tensor programs (room cost): loop nests in, times with intervals out.

Source: CDMPP (Hu et al., EuroSys 2024). Nothing here runs a program; ``cost/programs`` builds and measures them.
"""
