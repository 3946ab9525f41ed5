"""Several flights of one program: what fails takes nothing from the others."""

import json

import pytest

from tests.cli.command import windtunnel
from windtunnel.errors import FlightError, InputError, NotApplicableError
from windtunnel.flights import Ledger, verify_several
from windtunnel.flights import several as module
from windtunnel.graph import load, save
from windtunnel.measure import StopRule
from windtunnel.sources.targets import WorkloadName

pytest.importorskip("torch")

BRIEF = StopRule(rounds=3, min_rounds=3, precision=0.5, turn_ns=1_000_000, warmup=1)
NAMES = "fused-optimizer,channels-last,faster-cpu,foreach-optimizer"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A capture that knows its program."""
    subject = WorkloadName("mlp", {"width": 16, "depth": 2, "batch_size": 4})
    return save(subject.capture(2, None), tmp_path_factory.mktemp("several") / "mlp.wt")


@pytest.fixture
def flight(captured, tmp_path):
    """Flies the workload of the capture, briefly."""

    def verify(names, *more):
        common = ("--rounds", 3, "--ledger", tmp_path / "receipts.db", "--prices", "paper")
        return windtunnel("verify", captured, "--whatif", names, *common, *more)

    return verify


def test_what_does_not_apply_or_fails_takes_nothing_from_the_others(captured, tmp_path):
    """No convolution for channels-last; a faster processor can be predicted only."""
    ledger = Ledger(tmp_path / "receipts.db")
    outcomes = list(verify_several(load(captured), NAMES, rule=BRIEF, ledger=ledger, prices="paper"))

    assert ["flown", "does not apply", "failed", "flown"] == [outcome.status for outcome in outcomes]
    assert ["fused-optimizer", "foreach-optimizer"] == [receipt.whatif for receipt in ledger.receipts()]


def test_a_receipt_is_kept_before_the_next_flight_begins(captured, tmp_path):
    ledger = Ledger(tmp_path / "receipts.db")
    flights = verify_several(
        load(captured), "fused-optimizer,foreach-optimizer", rule=BRIEF, ledger=ledger, prices="paper"
    )

    first = next(flights)

    assert [first.receipt] == ledger.receipts()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotApplicableError("nothing to act on"), "does not apply", 1),
        (FlightError("it raised"), "failed", 2),
        (InputError("no such thing"), "failed", 2),
        (RuntimeError("a defect"), "failed", 2),
    ],
)
def test_an_outcome_says_how_it_failed(captured, monkeypatch, error, status, code):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, "verify", fail)
    (outcome,) = verify_several(load(captured), ["fused-optimizer"])

    assert (error, status, code) == (outcome.error, outcome.status, outcome.exit_code)


def test_the_command_prints_what_was_flown_and_what_failed(flight, tmp_path):
    outcome = flight("fused-optimizer,channels-last")

    rows = {line.split()[0]: line for line in outcome.stdout.splitlines() if line}
    assert "does not apply" in rows["channels-last"]
    assert "x" in rows["fused-optimizer"].split()[1]
    assert "channels-last does not apply here" in outcome.stderr
    assert 1 == outcome.code
    assert 1 == len(Ledger(tmp_path / "receipts.db").receipts())


def test_the_document_lists_failures_beside_receipts(flight):
    outcome = flight("channels-last,fused-optimizer", "--json")

    document = json.loads(outcome.stdout)
    assert ["fused-optimizer"] == [receipt["whatif"] for receipt in document["receipts"]]
    assert ["channels-last"] == [failure["whatif"] for failure in document["failures"]]
    assert "does not apply" == document["failures"][0]["status"]


def test_an_interrupted_flight_leaves_the_others_printed(flight, monkeypatch):
    real = module.verify

    def interrupt(subject, request, **options):
        if str(request) == "foreach-optimizer":
            raise KeyboardInterrupt
        return real(subject, request, **options)

    monkeypatch.setattr(module, "verify", interrupt)
    outcome = flight("fused-optimizer,foreach-optimizer")

    assert 130 == outcome.code
    assert "fused-optimizer" in outcome.stdout


def test_a_single_flight_that_fails_is_an_error_as_it_was(flight):
    outcome = flight("channels-last")

    assert 1 == outcome.code
    assert outcome.stderr.startswith("error: channels-last does not apply here")
    assert "" == outcome.stdout


def test_a_limit_that_is_used_up_leaves_the_flights_before_it(captured, monkeypatch, tmp_path):
    """The limit is used up behind the first flight."""
    left_s = [100.0]
    monkeypatch.setattr(module, "remaining_time", lambda _: lambda: left_s[-1])
    flights = verify_several(
        load(captured),
        "fused-optimizer,foreach-optimizer,amp",
        rule=BRIEF,
        time_limit_s=100,
        ledger=tmp_path / "receipts.db",
        prices="paper",
    )
    outcomes = [next(flights)]
    left_s.append(0.0)
    outcomes += flights

    assert ["flown", "out of time", "out of time"] == [outcome.status for outcome in outcomes]
    assert outcomes[1].error is outcomes[2].error


def test_a_script_that_hangs_is_given_up_and_what_was_not_flown_is_said(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text("import time\ntime.sleep(10**6)\n")
    outcome = windtunnel("verify", script, "--whatif", "amp,fused-optimizer", "--time-limit", "300ms")

    rows = {line.split()[0]: line for line in outcome.stdout.splitlines() if line}
    assert "out of time" in rows["amp"]
    assert "out of time" in rows["fused-optimizer"]
    assert "amp, fused-optimizer:" in outcome.stderr
    assert "the capture of" in outcome.stderr
    assert f"{script}:2" in outcome.stderr
    assert 1 == outcome.stderr.count("error:")
    assert 2 == outcome.code


def test_the_document_says_what_was_out_of_time(captured):
    outcome = windtunnel("verify", captured, "--whatif", "amp,fused-optimizer", "--time-limit", "0s", "--json")

    failures = json.loads(outcome.stdout)["failures"]
    assert [("amp", "out of time"), ("fused-optimizer", "out of time")] == [
        (failure["whatif"], failure["status"]) for failure in failures
    ]
    assert 2 == outcome.code
