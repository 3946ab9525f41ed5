"""How far from the peak a net or a step is, and where each lost per cent goes.

In: nets or captured steps, ceilings of the host. Out: shares of the peak, and advice. ``model`` divides a step,
``search`` finds shapes that would use the machine better, ``run`` tries them, ``study`` does all of it for many nets.
"""
