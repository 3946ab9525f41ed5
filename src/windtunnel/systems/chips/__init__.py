"""The chip and the plan chosen together: tensor and vector cores, SRAM, stages, degrees.

In: layers of a network, a space of chips. Out: the chips that nothing beats in throughput, area and energy, each with
its plan. ``model`` says what a chip with a plan yields, ``search`` finds them.

Internal modules: ``list_kernels``, ``stage_kernels``.
"""
