"""Where the memory of a training step goes: every storage by category, layer and source line.

Public modules: ``fit``, ``profile``, ``script``, ``tracking``, ``watch``.
"""
