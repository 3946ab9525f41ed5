"""What a machine with a GPU can tell: steps, what-ifs, memory, peaks and operators, in stages that resume.

One module per stage. What a stage records needs torch and numpy alone; what judges it needs the package's own needs,
and can be done later and elsewhere, on the same folder.
"""
