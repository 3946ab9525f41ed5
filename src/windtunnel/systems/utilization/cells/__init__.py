"""Nets of a space, priced on a device from few measurements, and searched.

In: latencies of other devices, a few of this one. Out: a latency for every net, and the fronts of searches. ``model``
predicts (after HELP), ``search`` searches, ``run`` measures the winners.
"""
