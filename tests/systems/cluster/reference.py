"""A slow, obvious simulator of clusters: objects, a heap, sorted lists; nothing is remembered between two passes."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from windtunnel.systems.cluster.links import link_use

INF = math.inf
MASK = (1 << 64) - 1


@dataclass
class Job:
    id: int
    model: str
    n: int
    arrival: int
    work: float
    quantum: float
    skewed: bool
    done: float = 0.0
    run: int = 0
    since: int = 0
    longest: int = 0
    state: str = "coming"
    starts: int = 0
    segment: Segment | None = None
    end: int | None = None
    timer: float = INF


@dataclass
class Segment:
    job: Job
    start: int
    begin: int
    speed: float
    place: dict[int, int]
    expires: float
    stop: int = 0
    end: int | None = None
    back: int | None = None
    quanta: int = 0
    alone: float = 0.0  # its speed if nobody else sent
    rated: int = 0  # since when it has its speed
    carried: float = 0.0  # work before that


@dataclass
class Reference:
    """One run: ``Reference(cluster, jobs, speed, policy).run()``; ``speed(model, batch, shape)``."""

    cluster: object
    table: object
    speed: object
    policy: object
    quantum: int = 0
    segments: list = field(default_factory=list)

    def run(self):
        p, c, t = self.policy, self.cluster, self.table
        self.G, self.MR, self.M = c.gpus_per_machine, c.machines_per_rack, c.num_machines
        self.lease = p.lease_ns(c)
        self.c = 0 if p.is_free_to_move else c.checkpoint_ns_per_gpu
        self.restart = 0 if p.is_free_to_move else c.restart_ns_per_gpu
        self.jobs = [
            Job(i, str(t.model[i]), int(t.gpus[i]), int(t.arrival_ns[i]), float(t.work_ns[i]),
                self.quantum * float(t.iteration_ns[i]),
                any(str(t.model[i]).lower().startswith(one) for one in p.skewed_models))
            for i in range(len(t))
        ]  # fmt: skip
        self.free = [self.G] * self.M
        self.kept = [None] * self.M
        self.reserver = None
        self.records = []  # level, demand, leases, time
        self.events, self.sequence = [], 0
        for job in self.jobs:
            self.post(job.arrival, "arrival", job)
        self.now, self.wakes = 0, 0
        while any(job.state != "over" for job in self.jobs):
            if not self.events:
                self.wakes += 1
                assert self.wakes < 10**6
                self.now += 60 * 10**9
                self.schedule()
                continue
            self.wakes, due = 0, False
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, kind, what = heapq.heappop(self.events)
                due |= bool(getattr(self, kind)(what))
            if due:
                self.schedule()
        return self

    def post(self, time, kind, what):
        heapq.heappush(self.events, (time, self.sequence, kind, what))
        self.sequence += 1

    # events; True: a pass is due

    def arrival(self, job):
        job.state, job.since = "waiting", self.now
        return True

    def returned(self, segment):
        for machine, count in segment.place.items():
            self.free[machine] += count
        segment.back = -1  # no longer holds
        return True

    def expiry(self, what):
        job, time = what
        if job.state == "waiting" and job.timer == time:
            job.timer = INF
            return True
        return False

    def stopped(self, what):
        segment, time = what
        job = segment.job
        if job.segment is not segment or segment.stop != time:
            return False
        if job.quantum:
            segment.quanta += 1
            if segment.quanta * job.quantum >= (job.work - job.done) * (1 - 1e-12):
                return self.end_segment(job, True)
            following = self.quantum_end(segment)
            if following > segment.expires:
                return self.end_segment(job, False)
            segment.stop = following
            self.post(following, "stopped", (segment, following))
            return False
        return self.end_segment(job, time == self.last_ns(segment))

    def last_ns(self, segment):
        left = segment.job.work - segment.job.done
        return segment.rated + max(math.ceil((left - segment.carried) / segment.speed), 1)

    def quantum_end(self, segment):
        count = segment.quanta + 1
        return segment.begin + max(round(count * segment.job.quantum / segment.speed), count)

    def end_segment(self, job, is_last):
        segment = job.segment
        ran = max(self.now - segment.begin, 0)
        left = job.work - job.done
        if is_last:
            job.done = job.work
        elif job.quantum and self.now == segment.stop:
            job.done += min(segment.quanta * job.quantum, left)
        else:
            job.done += min(segment.carried + max(self.now - segment.rated, 0) * segment.speed, left)
        job.run += ran
        job.segment, segment.end, job.since = None, self.now, self.now
        job.state = "over" if is_last else "waiting"
        job.end = self.now if is_last else None
        self.share()
        segment.back = self.now + self.c * job.n
        self.post(segment.back, "returned", segment)
        return False

    # order

    def sensitivity(self, job):
        return job.done / job.run if job.run else 0.0

    def attained(self, job):
        return job.run * job.n / 1e9

    def ranked(self):
        p = self.policy
        waiting = [job for job in self.jobs if job.state == "waiting"]
        present = [job for job in self.jobs if job.state in ("waiting", "running")]
        total = self.G * self.M
        if p.order == "ftf":
            share = total / len(present)

            def late(j):
                alone = j.work * max(1.0, j.n / share)
                return -(self.now - j.arrival + j.work - j.done) / alone, j.arrival, j.id

            return sorted(waiting, key=late)
        if p.order == "max_min":
            level = self.water(present, total)

            def behind(j):
                got = j.run / max(self.now - j.arrival, 1)
                fair = min(1.0, level / j.n)
                return (-fair / got if got > 0 else -1e18 * fair, j.arrival, j.id)

            return sorted(waiting, key=behind)
        return sorted(waiting, key=self.key)

    def water(self, present, total):
        """Raise the level until the GPUs are given out."""
        left, sharers = float(total), sorted(present, key=lambda j: j.n)
        while sharers and left / len(sharers) > sharers[0].n:
            n = sharers[0].n
            same = [j for j in sharers if j.n == n]
            left -= n * len(same)
            sharers = [j for j in sharers if j.n != n]
        return left / len(sharers) if sharers else float(total)

    def key(self, job):
        p, second = self.policy, job.arrival
        if p.order == "nw_sens":
            key, second = round(self.sensitivity(job) * 1e9) / 1e9, job.since
        elif p.order == "las2d":
            key = self.attained(job)
        elif p.order == "srtf":
            key = job.work - job.done
        elif p.order == "fifo":
            key = 0.0
        elif p.order == "queues":
            key = float(sum(one <= self.attained(job) for one in p.thresholds_gpu_s))
            if p.promote and job.run and job.longest >= p.promote * job.run:
                key = 0.0
        elif p.order == "gittins":
            ages, index = p.gittins
            key = -index[max(sum(age <= self.attained(job) for age in ages) - 1, 0)]
        else:
            key = self.attained(job)
            if p.order == "ends":
                second = -int(job.work)
                key = min(key, (job.work - job.done) * job.n / 1e9)
            key *= 1.0 - p.weight * (1.0 - self.sensitivity(job))
            if p.order == "ends":
                key /= (job.work * job.n / 1e9) ** p.tail
        if p.aging:
            key += p.aging * (job.since / self.lease)
        return key, second, job.id

    # offers

    def open(self, machine, kept=None):
        return self.free[machine] if self.kept[machine] == kept else 0

    def in_rack(self, rack):
        return range(rack * self.MR, (rack + 1) * self.MR)

    def racks(self):
        return range(self.cluster.num_racks)

    def one_machine(self, n, kept=None):
        fits = [m for m in range(self.M) if self.open(m, kept) >= n]
        if not fits:
            return None
        fit = self.policy.fit
        if fit == "best":
            return min(fits, key=lambda m: (self.free[m], m))
        if fit == "frag":
            return min(fits, key=lambda m: (self.loss(self.free[m], n), self.free[m], m))
        return fits[0]

    def loss(self, free, n):
        def slots(gpus):
            share = {}
            for job in self.jobs:
                if job.n <= self.G:
                    share[job.n] = share.get(job.n, 0) + 1
            return sum(share[d] / len(self.jobs) * (gpus // d) for d in sorted(share))

        return round(slots(free) - slots(free - n), 12)

    def fill(self, machines, n, kept=None):
        place, machines = {}, [m for m in machines if self.open(m, kept)]
        while n:
            if self.policy.fit == "first":
                chosen = machines[0]
            else:
                whole = [m for m in machines if self.free[m] >= n]
                chosen = (min(whole, key=lambda m: (self.free[m], m)) if whole
                          else max(machines, key=lambda m: (self.free[m], -m)))  # fmt: skip
            place[chosen] = min(n, self.free[chosen])
            n -= place[chosen]
            machines.remove(chosen)
        return place

    def rack_place(self, n, kept=None):
        free = {r: sum(self.open(m, kept) for m in self.in_rack(r)) for r in self.racks()}
        fits = [r for r in free if free[r] >= n]
        if not fits:
            return None
        rack = fits[0] if self.policy.fit == "first" else min(fits, key=lambda r: (free[r], r))
        return self.fill(self.in_rack(rack), n, kept)

    def any_place(self, n, kept=None):
        free = {r: sum(self.open(m, kept) for m in self.in_rack(r)) for r in self.racks()}
        free, place = {r: f for r, f in free.items() if f}, {}
        while n:
            if self.policy.fit == "first":
                rack = min(free)
            else:
                whole = [r for r in free if free[r] >= n]
                rack = min(whole, key=lambda r: (free[r], r)) if whole else max(free, key=lambda r: (free[r], -r))
            taken = min(n, free.pop(rack))
            place |= self.fill(self.in_rack(rack), taken, kept)
            n -= taken
        return place

    def offer(self, job):
        p, n = self.policy, job.n
        if p.placement == "affine":
            return self.affine_place(job)
        if p.placement == "spread" and (not job.skewed or n > self.G):
            return self.any_place(n)
        machine = self.one_machine(n)
        if machine is not None:
            return {machine: n}
        waited = self.now - job.since
        rack_timer, network_timer = self.timers(n)
        if n > self.G or waited >= rack_timer:
            place = self.rack_place(n)
            if place:
                return self.worth(job, place)
        if n > self.G * self.MR or waited >= network_timer:
            return self.worth(job, self.any_place(n))
        return None

    def timers(self, n):
        p = self.policy
        if p.timers != "auto":
            return self.ns(p.rack_timer_s), self.ns(p.network_timer_s)
        H = p.history_leases
        found = []
        for level in range(2):
            waits = [w for lev, d, w, t in self.records if lev == level and d == n and self.now - t <= H * self.lease]
            mean = sum(waits) / len(waits) if waits else 0
            spread = math.sqrt(sum((w - mean) ** 2 for w in waits) / len(waits)) if waits else 0
            found.append(mean + 2 * spread if waits else 1.0)
        rack = min(math.ceil(0.8 * H), max(6, math.ceil(found[0])))
        return rack * self.lease, min(H, max(12, math.ceil(found[1]))) * self.lease

    def ns(self, seconds):
        return INF if seconds == INF else round(seconds * 1e9)

    def shape(self, place):
        racks = {}
        for machine, count in sorted(place.items()):
            racks.setdefault(machine // self.MR, []).append(count)
        return tuple(sorted((tuple(sorted(r, reverse=True)) for r in racks.values()), reverse=True))

    def speed_of(self, job, place):
        return 1.0 if job.n == 1 else self.speed.speed(job.model, 0, self.shape(place))

    def tier(self, place):
        shape = self.shape(place)
        return 2 if len(shape) > 1 else int(len(shape[0]) > 1)

    def worth(self, job, place):
        if self.policy.timers != "marginal" or len(place) < 2:
            return place
        loose, n = self.speed_of(job, place), job.n
        for level in range(self.tier(place)):
            if (n > self.G) if level == 0 else (n > self.G * self.MR):
                continue
            machines, left = [], n
            while left:
                machines.append(min(left, self.G))
                left -= machines[-1]
            tight = self.speed.speed(job.model, 0, (tuple(machines),))
            at = self.frees[level].get(n)
            wait = self.now + 2**61 if at is None else at - self.now
            length = min(float(self.lease), (job.work - job.done) / tight)
            if loose < tight * length / (length + self.policy.patience * max(wait, self.c)):
                return None
        return place

    def predict(self):
        """Earliest time at which a machine (0), a rack (1) has so many GPUs."""
        self.frees = [{}, {}]
        holders = sorted(self.holders(), key=lambda h: h[0])
        free = [self.open(m) for m in range(self.M)]
        for time, place in [(self.now, {}), *holders]:
            for machine, count in place.items():
                free[machine] += count if self.kept[machine] is None else 0
            for n in range(1, max(free) + 1):
                self.frees[0].setdefault(n, time)
            for n in range(1, max(sum(free[m] for m in self.in_rack(r)) for r in self.racks()) + 1):
                self.frees[1].setdefault(n, time)

    def holders(self):
        found = []
        for segment in self.segments:
            if segment.end is None:
                found.append((segment.stop + self.c * segment.job.n, segment.place))
            elif segment.back != -1:
                found.append((segment.back, segment.place))
        return found

    def affine_place(self, job):
        n = job.n

        def residents(machine):
            held = [s for s in self.segments if machine in s.place and s.back != -1]
            return max(held, key=self.segments.index).job.n if held else n

        fits = [m for m in range(self.M) if self.open(m) >= n]
        if fits:
            own = [m for m in fits if residents(m) == n]
            return {max(own or fits, key=lambda m: (self.free[m], -m)): n}
        salt = mix_bits(self.policy.seed, job.id) ^ job.starts
        pool = [m for m in range(self.M) for _ in range(self.open(m))]
        place = {}
        for draw in range(n):
            machine = pool.pop(mix_bits(salt, draw + 1) % len(pool))
            place[machine] = place.get(machine, 0) + 1
        return place

    # passes

    def schedule(self):
        p = self.policy
        if not any(job.state == "waiting" for job in self.jobs):
            if p.migrates:
                self.migrate()
            return
        if p.reserve_after_s != INF:
            self.serve_reservation()
        if not sum(self.open(m) for m in range(self.M)):
            return
        self.predict()
        shadow = extra = None
        for job in self.ranked():
            total = sum(self.open(m) for m in range(self.M))
            if not total:
                break
            place = self.offer(job) if job.n <= total else None
            if place is None:
                if p.backfills and shadow is None:
                    shadow, extra = self.shadow(job, total)
                if job.n <= total and p.timer_events:
                    self.set_timer(job)
                continue
            if shadow is not None and self.now + (job.work - job.done) / self.speed_of(job, place) > shadow:
                if job.n > extra:
                    continue
                extra -= job.n
            self.start(job, place)
        if p.migrates:
            self.migrate()

    def set_timer(self, job):
        for limit, timer in zip((self.G, self.G * self.MR), self.timers(job.n), strict=True):
            time = job.since + timer
            if job.n <= limit and self.now < time < min(job.timer, 2**61):
                job.timer = time
                self.post(time, "expiry", (job, time))

    def shadow(self, job, total):
        for time, place in sorted(self.holders(), key=lambda h: h[0]):
            total += sum(place.values())
            if total >= job.n:
                return time, total - job.n
        return INF, 0

    def start(self, job, place):
        if self.policy.timers == "auto" and self.tier(place) < 2:
            waited = (self.now - job.since) / self.lease
            if waited >= 1:
                self.records.append((self.tier(place), job.n, waited, self.now))
        if job is self.reserver:
            self.reserver, self.kept = None, [None] * self.M
        restart = self.restart * job.n if job.starts else 0
        expires = self.now + self.lease if self.policy.has_lease else INF
        segment = Segment(job, self.now, self.now + restart, self.speed_of(job, place), dict(place), expires)
        segment.alone, segment.rated = segment.speed, segment.begin
        for machine, count in place.items():
            self.free[machine] -= count
            assert self.free[machine] >= 0
        job.longest = max(job.longest, self.now - job.since)
        job.state, job.segment, job.timer = "running", segment, INF
        job.starts += 1
        segment.stop = self.quantum_end(segment) if job.quantum else min(self.last_ns(segment), expires)
        self.post(segment.stop, "stopped", (segment, segment.stop))
        self.segments.append(segment)
        self.share()

    # shared links

    def senders(self):
        return [j.segment for j in self.jobs if j.segment and len(j.segment.place) > 1]

    def use(self, segment):
        """Parts on cards, on uplinks; load of a card; part on uplinks that cards hold up."""
        return link_use(self.speed, segment.job.model, 0, self.shape(segment.place), self.cluster.links)

    def racks_of(self, segment):
        racks = {m // self.MR for m in segment.place}
        return racks if len(racks) > 1 else set()

    def share(self):
        """Every job that sends goes on at the speed that the others now leave it."""
        if not self.cluster.shares_links:
            return
        for one in self.senders():
            card, uplink, _, both = self.use(one)
            others = [other for other in self.senders() if other is not one]
            on_cards = max(sum(self.use(o)[2] for o in others if m in o.place) for m in one.place)
            on_uplinks = max(
                (sum(self.use(o)[1] for o in others if r in self.racks_of(o)) for r in self.racks_of(one)), default=0
            )
            speed = one.alone / (1 + card * on_cards + max(uplink * on_uplinks, both * on_cards))
            if abs(speed - one.speed) > 1e-12 * one.speed:
                one.carried += max(self.now - one.rated, 0) * one.speed
                one.rated, one.speed = max(self.now, one.rated), speed
                one.stop = min(self.last_ns(one), one.expires)
                self.post(one.stop, "stopped", (one, one.stop))

    def migrate(self):
        running = [j for j in self.jobs if j.state == "running" and len(j.segment.place) > 1]
        for job in running:
            machine = self.one_machine(job.n) if job.segment.start < self.now else None
            if machine is not None:
                self.end_segment(job, False)
                self.start(job, {machine: job.n})

    def serve_reservation(self):
        limit = self.ns(self.policy.reserve_after_s)
        if self.reserver is None:
            old = [j for j in self.ranked() if j.state == "waiting" and j.n > self.G and self.now - j.since >= limit]
            if not old:
                return
            self.reserver = min(old, key=lambda j: j.since)
            self.drain(self.reserver)
        job = self.reserver
        n = job.n
        if sum(self.open(m, job) for m in range(self.M)) < n:
            return
        place = self.rack_place(n, job) if n <= self.G * self.MR else self.any_place(n, job)
        if place:
            self.start(job, place)

    def drain(self, job):
        ready = [self.now] * self.M
        for time, place in self.holders():
            for machine in place:
                ready[machine] = max(ready[machine], time)
        order = sorted(range(self.M), key=lambda m: ready[m])
        needed = -(-job.n // self.G)
        if job.n <= self.G * self.MR:
            soonest = {r: sorted(ready[m] for m in self.in_rack(r))[needed - 1] for r in self.racks()}
            rack = min(soonest, key=lambda r: (soonest[r], r))
            order = [m for m in order if m in self.in_rack(rack)]
        for machine in order[:needed]:
            self.kept[machine] = job


def mix_bits(value, salt):
    """The finalizer of splitmix64."""
    bits = (value + salt * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)
