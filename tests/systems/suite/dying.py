"""A workload's process that dies at once."""


def main(_place):
    """End as a crash would."""
    raise SystemExit(1)
