"""Masks of a training, for tests."""


def watched(step, models, iterations, program="", samples=4):
    """Train until the last of some iterations, and keep the masks of each of them."""
    from windtunnel.sources.zeros.watch import ZeroWatch

    watch = ZeroWatch(models, samples=samples)
    for iteration in range(max(iterations) + 1):
        if iteration in iterations:
            watch.begin()
        step()
        if iteration in iterations:
            watch.end(iteration)
    return watch.records(program)
