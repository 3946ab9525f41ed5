"""Plans written by hand for the tests of what runs them."""

from windtunnel.systems.collectives.layouts import block
from windtunnel.systems.collectives.plan import Buffer, Plan, RankPlan, View
from windtunnel.systems.collectives.rings import RingPlace, gather_hops, reduce_hops


def all_reduce(num_ranks, size, dtype="float32"):
    """A ring all-reduce of buffer ``g`` in place."""
    return Plan(
        "all-reduce", (num_ranks,), tuple(_all_reduce(rank, num_ranks, size, dtype) for rank in range(num_ranks))
    )


def _all_reduce(rank, num_ranks, size, dtype):
    def part(chunk):
        start, stop = block(size, chunk, num_ranks)
        return View("g", start, (stop - start,))

    place, largest = RingPlace(rank, num_ranks), part(0).size
    work = [View(name, 0, (largest,)) for name in ("work 0", "work 1")]
    hops = [*reduce_hops(place, part, part(rank), work, 0), *gather_hops(place, part, 1)]
    buffers = {"g": Buffer(size, dtype), "work 0": Buffer(largest, dtype), "work 1": Buffer(largest, dtype)}
    return RankPlan(rank, buffers, {"compute": tuple(item for hop in hops for item in (*hop.sends, *hop.rest))})


def plan_of(*ranks, size=8):
    """A plan whose ranks have these threads, and a buffer ``x``."""
    buffers = {"x": Buffer(size, "float32")}
    return Plan("test", (len(ranks),), tuple(RankPlan(rank, buffers, threads) for rank, threads in enumerate(ranks)))
