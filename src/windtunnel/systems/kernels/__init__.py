"""Kernels that evolve: a search over LLVM IR, judged by tests and by the clock (GEVO).

In: one function as LLVM IR with tests. Out: a short list of edits that make it faster, each named in words, told apart
by what they rest on. Not here: taking times, starting processes (``measure``).

Internal modules: ``candidate_process``, ``gpu``, ``ir_text``, ``worker``.
"""
