"""Nets as the kernels that a runtime of this host runs, each priced by a forest.

In: nets, and a runtime. Out: which layers it fuses, a forest per kind of kernel, the time of a net that was never run.
``model`` predicts, ``learned`` learns and keeps, ``run`` measures.

Source: Zhang et al., nn-Meter, MobiSys 2021.
"""
