"""Links that explain what was measured: exact on exact data, unmoved by a bad sample, and from real messages."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import windtunnel
from windtunnel.comm.links import LinkSample, fit_link, samples_of
from windtunnel.cost.collective import collective_ns
from windtunnel.errors import InputError, NotApplicableError
from windtunnel.graph import GraphBuilder, Kind, ProcessGroup, save
from windtunnel.hardware import Link, link
from windtunnel.hardware.sheet import write_link

SIZES = [1 << shift for shift in range(10, 25, 2)]
OPS = ("p2p", "all_reduce", "all_gather")


def samples(wire, num=4):
    return [LinkSample(op, num, size, collective_ns(op, size, num, wire)) for op in OPS for size in SIZES]


@settings(max_examples=25, deadline=None)
@given(gigabytes=st.floats(0.05, 50), latency_ns=st.integers(1000, 10**6), sums=st.floats(1, 100))
def test_exact_times_give_back_their_link(gigabytes, latency_ns, sums):
    wire = Link("wire", gigabytes * 1e9, latency_ns=latency_ns, sum_bytes_per_s=sums * 1e9)
    fit = fit_link(samples(wire), "found")

    assert gigabytes * 1e9 == pytest.approx(fit.link.bandwidth_bytes_per_s, rel=0.01)
    assert latency_ns == pytest.approx(fit.link.latency_ns, rel=0.01)
    assert sums * 1e9 == pytest.approx(fit.link.sum_bytes_per_s, rel=0.05)
    assert fit.error < 0.01


def test_a_disturbed_sample_moves_nothing():
    measured = samples(Link("wire", 1e9, latency_ns=20_000))
    measured[5] = LinkSample(measured[5].op, 4, measured[5].size_bytes, 9 * measured[5].duration_ns)
    fit = fit_link(measured, "found")

    assert 1e9 == pytest.approx(fit.link.bandwidth_bytes_per_s, rel=0.02)
    assert 20_000 == pytest.approx(fit.link.latency_ns, rel=0.02)


def test_a_sample_that_varies_counts_less_than_those_that_do_not():
    measured = samples(Link("wire", 1e9, latency_ns=20_000))
    doubled = [
        LinkSample(one.op, 4, one.size_bytes, 2 * one.duration_ns, spread_ratio=0.5) if one.size_bytes < 2**16 else one
        for one in measured
    ]
    fit = fit_link(doubled, "found")

    assert 1e9 == pytest.approx(fit.link.bandwidth_bytes_per_s, rel=0.02)


def test_sums_that_cannot_be_told_from_the_wire_are_not_told():
    wire = Link("wire", 1e9, latency_ns=20_000, sum_bytes_per_s=1e9)
    only = [one for one in samples(wire) if one.op == "all_reduce"]

    assert fit_link(only, "found").link.sum_bytes_per_s is None


@given(st.lists(st.floats(1, 1e12), min_size=8, max_size=8))
@settings(max_examples=50, deadline=None)
def test_no_number_of_a_link_is_negative(times):
    """Whatever was measured: a link that is none is refused in words."""
    measured = [LinkSample("p2p", 2, size, time) for size, time in zip(SIZES, times, strict=True)]
    with contextlib.suppress(InputError):
        fit = fit_link(measured, "found")

        assert fit.link.latency_ns >= 0
        assert fit.link.bandwidth_bytes_per_s > 0


def test_one_size_does_not_tell_latency_from_bandwidth():
    with pytest.raises(InputError, match="do not tell latency from bandwidth"):
        fit_link([LinkSample("p2p", 2, 1000, 5)], "found")


def job(*sizes_and_times):
    """Two ranks whose collectives took so long, one of them waiting."""
    builder = GraphBuilder()
    for number, (size, taken) in enumerate(sizes_and_times):
        for rank in range(2):
            builder.task(
                "all_reduce", kind=Kind.COMM, duration_ns=taken + 999 * rank, rank=rank, message_bytes=size, group=0,
                sequence=number,
            )  # fmt: skip
    return builder.build({"groups": [ProcessGroup("world", (0, 1))]})


def test_a_trace_tells_its_link_by_who_did_not_wait():
    wire = Link("wire", 1e9, latency_ns=5000)
    graph = job(*((size, collective_ns("all_reduce", size, 2, wire)) for size in SIZES))

    assert 1e9 == pytest.approx(fit_link(samples_of(graph), "found").link.bandwidth_bytes_per_s, rel=0.01)
    with pytest.raises(NotApplicableError):
        samples_of(job((0, 0)))


def test_a_sheet_is_a_link_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wire = Link("mine", 1.5e9, latency_ns=7, source="here")
    write_link(wire, tmp_path / "mine.json")

    assert wire == link("mine.json")
    for text, says in (('{"name": "x"}', "lacks bandwidth"), ('{"name": 1}', "lacks"), ("[]", "not one JSON object")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=says):
            link("bad.json")


def test_a_capture_teaches_its_link_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wire = Link("wire", 1e9, latency_ns=5000)
    save(job(*((size, collective_ns("all_reduce", size, 2, wire)) for size in SIZES)), tmp_path / "job.wt")
    outcome = windtunnel("calibrate", "--links", "--learn", "job.wt", "--database", "p.db", "--json")

    assert 0 == outcome.code
    assert 1e9 == pytest.approx(json.loads(outcome.stdout)["link"]["bandwidth_bytes_per_s"], rel=0.01)
    assert 1e9 == pytest.approx(link("job.link.json").bandwidth_bytes_per_s, rel=0.01)


@pytest.mark.slow
def test_real_messages_tell_a_link_that_a_what_if_takes(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("windtunnel.comm.links.SIZES_BYTES", (1 << 10, 1 << 16, 1 << 20))
    outcome = windtunnel("calibrate", "--links", "--database", "p.db", "--json")
    found = json.loads(outcome.stdout)
    again = windtunnel("calibrate", "--links", "--database", "p.db", "--json", "--force")

    assert 0 == outcome.code
    assert {"p2p", "all_reduce"} == {one["op"] for one in found["samples"]}
    assert link("link.json").bandwidth_bytes_per_s == found["link"]["bandwidth_bytes_per_s"]
    assert found == json.loads(again.stdout)
