"""One folder per subject: what a published system adds to the core.

The core imports nothing from here and no subject imports another; verbs, pages, what-ifs and flights are found through
the registry.
"""
