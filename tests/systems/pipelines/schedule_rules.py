"""What a schedule has to obey, played slowly on ranks with queues between them: the reference of ``verify``."""

from collections import Counter, defaultdict, deque
from dataclasses import replace

from windtunnel.systems.pipelines.schedules import Action, Schedule


def broken_rule(schedule: Schedule) -> str:
    """The name of a rule that is broken, or nothing."""
    rows = [[one for one in row if one is not None] for row in schedule.actions]
    return _counted(schedule, rows) or _played(schedule, rows) or _held(schedule, rows)


def mutated(schedule: Schedule, random) -> Schedule:
    """One accident: actions swapped, moved, lost, doubled, or renamed; what overlaps is forgotten."""
    rows = [[one for one in row if one is not None] for row in schedule.actions]
    a, b = (rows[random.integers(len(rows))] for _ in range(2))
    at, other = random.integers(len(a)), random.integers(len(b))
    match random.choice(
        ["swap", "swap", "move", "move", "swap ranks", "lose", "double", "stage", "microbatch", "kind", "batch"]
    ):
        case "swap":
            other = random.integers(len(a))
            a[at], a[other] = a[other], a[at]
        case "swap ranks":
            a[at], b[other] = b[other], a[at]
        case "move":
            a.insert(random.integers(len(a)), a.pop(at))
        case "lose":
            del a[at]
        case "double":
            a.insert(other, a[at])
        case "stage":
            a[at] = a[at]._replace(stage=int(random.integers(schedule.num_stages + 1)))
        case "microbatch":
            a[at] = a[at]._replace(microbatch=int(random.integers(schedule.num_passes + 1)))
        case "kind":
            a[at] = a[at]._replace(kind=str(random.choice(list("FBIW"))))
        case "batch":  # a whole row goes another way round
            start = random.integers(len(a))
            a[:] = a[start:] + a[:start]
    return replace(schedule, actions=tuple(map(tuple, rows)), overlaps=frozenset())


def _counted(schedule: Schedule, rows: list[list[Action]]) -> str:
    """F once, and B once or both of I and W once, of everything that exists, on its rank."""
    there = Counter()
    for rank, row in enumerate(rows):
        for one in row:
            for kind in "IW" if one.kind == "B" else one.kind:
                there[rank, one.stage, kind, one.microbatch] += 1
    kinds = "FIW" if any(kind != "F" for _, _, kind, _ in there) else "F"
    wanted = Counter()
    for stage in range(schedule.num_stages):
        ranks = schedule.replicas[stage] if schedule.replicas else [schedule.rank_of[stage]]
        for at in range(schedule.num_microbatches * schedule.num_batches):
            wanted.update((ranks[at % len(ranks)], stage, kind, at) for kind in kinds)
    return "" if there == wanted else "exactly once"


def _played(schedule: Schedule, rows: list[list[Action]]) -> str:
    """Ranks in turns, each doing its next action once its own passes are done and its message has come."""
    done = defaultdict(set)  # by rank
    queues = defaultdict(deque)  # by sender, receiver, direction
    rows = [deque(row) for row in rows]
    last = schedule.num_stages - 1
    while any(rows):
        moved = False
        for rank, row in enumerate(rows):
            if not row:
                continue
            stage, kind, at = one = row[0]
            came_from = {"F": stage - 1 if stage else None, "W": None}.get(kind, stage + 1 if stage < last else None)
            direction = "F" if kind == "F" else "B"
            before = {"B": "F", "I": "F", "W": "I"}.get(kind)
            if before and (stage, before, at) not in done[rank]:
                return "order on a rank"
            if came_from is not None:
                sender = schedule.rank(came_from, at)
                queue = queues[sender, rank, direction]
                if sender == rank:
                    if (came_from, "F" if kind == "F" else "I", at) not in done[rank]:
                        return "order on a rank"
                elif not queue:
                    continue
                elif queue.popleft() != (came_from, at):
                    return "messages cross"
            if not _has_weights(schedule, done[rank], one):
                return "weights"
            row.popleft()
            moved = True
            done[rank].update((stage, part, at) for part in ("IW" if kind == "B" else kind))
            goes_to = {"F": stage + 1 if stage < last else None, "W": None}.get(kind, stage - 1 if stage else None)
            if goes_to is not None and schedule.rank(goes_to, at) != rank:
                queues[rank, schedule.rank(goes_to, at), direction].append((stage, at))
        if not moved:
            return "deadlock"
    return ""


def _has_weights(schedule: Schedule, done: set, one: Action) -> bool:
    """Whether earlier batches have ended as far as this pass needs, on its rank."""
    batch = one.microbatch // schedule.num_microbatches
    delay = {"flush": 1, "2bw": 2, "stash": 10**9}[schedule.versions] if one.kind == "F" else 1
    if one.kind == "I" or not schedule.is_training:
        return True
    for at in range(max(0, (batch - delay + 1) * schedule.num_microbatches)):
        is_here = schedule.rank(one.stage, at) == schedule.rank(one.stage, one.microbatch)
        if is_here and (one.stage, "W", at) not in done:
            return False
    return True


def _held(schedule: Schedule, rows: list[list[Action]]) -> str:
    for row, most in zip(rows, schedule.max_in_flight, strict=False):
        held = set()
        for one in row:
            if one.kind == "F":
                held.add((one.stage, one.microbatch))
            if one.kind in "BW":
                held.remove((one.stage, one.microbatch))
            if len(held) > most:
                return "in flight"
    return ""
