"""Tensor programs and what they cost: loop nests built, measured, learned from, searched.

In: the operators that networks are made of. Out: a predictor of programs that were never run, a pricer of graphs, the
fastest schedule of a task. ``run`` builds and measures (extra ``tvm``), ``model`` predicts, ``search`` decides.

Source: CDMPP (Hu et al., EuroSys 2024).
"""
