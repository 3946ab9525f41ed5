"""Input pipelines: will storage and data loading keep the accelerators busy?

In: a DLIO configuration or a captured training script. Out: accelerator utilization, predicted and measured.
"""
