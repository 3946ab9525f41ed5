"""The comparison mode against what HolisticTraceAnalysis says of its own traces: counts, weights, path.

Every number is one that the peer's tests assert or that its overlay file shows; all must be equal to the unit.
"""

import gzip
import json
import sys

from tests.shared_data import find_shared

from benchmarks import bar
from benchmarks.peers.hta import HtaPath, hta_critical_path

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
# (event, is its end) -> (event, is its end): µs
WEIGHTS = {
    ((286, False), (287, False)): 15,
    ((287, False), (1005, False)): 14,
    ((1005, False), (1005, True)): 17,
    ((1005, True), (287, True)): 15,
    ((287, True), (286, True)): 32,
    ((1053, False), (1051, False)): 27,  # launch delay
    ((1051, True), (1067, False)): 7,  # kernel after kernel
    ((1069, False), (1067, False)): 0,  # the zero-weight launch edge of the same kernel
    ((1275, True), (1281, True)): 0,  # device synchronization
}


def main() -> int:
    """Compare and print the bar; 1 if it does not hold."""
    alexnet = find_shared("replay/critical_path/alexnet_fwd_two_streams.json.gz")
    overlay = find_shared("replay/critical_path/alexnet_fwd_two_streams.hta_overlay.json.gz")
    event_sync = find_shared("replay/critical_path/cuda_event_sync.json.gz")
    if alexnet is None or overlay is None or event_sync is None:
        bar.report("hta_exact", 0, "all equal", False, reason="the public traces are not here")
        return 1
    forward = hta_critical_path(alexnet, window=FORWARD, occurrence=1)
    whole = hta_critical_path(alexnet, zero_weight_launch_edges=False)
    synced = hta_critical_path(event_sync, window="ProfilerStep", occurrence=0)
    painted = json.loads(gzip.decompress(overlay.read_bytes()))["traceEvents"]
    critical = [i for i, event in enumerate(painted) if event.get("ph") == "X" and event["args"].get("critical") == 1]
    rows = [
        *_rows("forward", forward, FORWARD_EXPECTED),
        *_rows("whole trace", whole, WHOLE_EXPECTED),
        *_rows("event sync", synced, EVENT_SYNC_EXPECTED),
        _row("whole trace: events of the overlay", critical, whole.events.tolist()),
        *(_row(f"weight {a}->{b} (µs)", weight * 1000, forward.weight(a, b)) for (a, b), weight in WEIGHTS.items()),
    ]
    equal = sum(row["equal"] for row in rows)
    holds = equal == len(rows)
    wrong = [row for row in rows if not row["equal"]]
    bar.report("hta_exact", equal, f"= {len(rows)} values equal", holds, values=len(rows), wrong=wrong)
    if bar.is_verbose():
        print(bar.table([{key: str(value)[:40] for key, value in row.items()} for row in rows]))
    return 0 if holds else 1


FORWARD_EXPECTED = {
    "nodes": 458,
    "edges": 440,
    "edge types": {"operator": 350, "dependency": 23, "launch": 40, "kernel-kernel": 25, "sync": 2},
    "path nodes": 315,
    "path edges": 314,
    "path types": {"operator": 288, "dependency": 20, "launch": 1, "kernel-kernel": 5, "sync": 0},
    "path events": 159,
    "length µs": 241_724,
    "window µs": 243_351,
}
WHOLE_EXPECTED = {
    "path dependency, sync, launch edges": [158, 17, 17],
    "path events": 624,
    "length µs": 41_435_012,
}
EVENT_SYNC_EXPECTED = {
    "nodes": 56,
    "edges": 57,
    "sync edges": 4,
    "path nodes": 38,
    "path events": 20,
    "length µs": 2_411,
}


def _measured(path: HtaPath) -> dict[str, object]:
    on_path = path.count(path.path)
    return {
        "nodes": len(path.node_event),
        "edges": len(path.edges),
        "edge types": path.count(),
        "sync edges": path.count()["sync"],
        "path nodes": len(path.path_nodes),
        "path edges": len(path.path),
        "path types": on_path,
        "path dependency, sync, launch edges": [on_path[kind] for kind in ("dependency", "sync", "launch")],
        "path events": len(path.events),
        "length µs": path.length_ns / 1000,
        "window µs": path.window_ns / 1000,
    }


def _rows(what: str, path: HtaPath, expected: dict[str, object]) -> list[dict[str, object]]:
    measured = _measured(path)
    return [_row(f"{what}: {name}", value, measured[name]) for name, value in expected.items()]


def _row(what: str, expected: object, ours: object) -> dict[str, object]:
    return {"what": what, "expected": expected, "ours": ours, "equal": expected == ours}


if __name__ == "__main__":
    sys.exit(main())
