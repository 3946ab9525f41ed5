"""``windtunnel serve``: from a profile to splits that were flown."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.cli.command import windtunnel
from tests.systems.serving.profiles import MODEL
from windtunnel.systems.serving.instances import server_cores

PROFILE = """num_threads,batch_size,latency_ms
1,1,3
1,2,5
1,4,9
2,1,2
2,2,4
2,4,8
2,8,30
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text(PROFILE)
    return path


def test_a_plan_stands_beside_one_instance_and_one_per_thread(profile):
    found = windtunnel("serve", "plan", profile, "--batch-size", "8,2")

    assert 0 == found.code, found.stderr
    lines = found.stdout.splitlines()
    assert any("2x<1,4>" in line and "9.00 ms" in line and "3.33x" in line and "1.00x" in line for line in lines)
    assert any("2x<1,1>" in line and "1.33x" in line for line in lines)


def test_as_json_a_plan_has_its_instances(profile):
    found = windtunnel("serve", "plan", profile, "--batch-size", "7", "--json")
    document = json.loads(found.stdout)

    assert "windtunnel.serve-plan/1" == document["schema"]
    best = document["plans"][0]["best"]
    assert [4, 3] == [one["batch"] for one in best["instances"]]
    assert 9e6 == best["latency_ns"]


def test_runs_beside_busy_neighbors_change_the_plan(profile, tmp_path):
    flown = tmp_path / "flown.csv"
    flown.write_text("num_threads,batch_size,latency_ms\n1,1,9\n2,2,4\n")
    found = windtunnel("serve", "plan", profile, "--batch-size", "2", "--measured", flown, "--json")

    best = json.loads(found.stdout)["plans"][0]["best"]
    assert [2] == [one["threads"] for one in best["instances"]]


def test_the_picture_has_all_three(profile, tmp_path):
    page = tmp_path / "plan.html"
    found = windtunnel("serve", "plan", profile, "--batch-size", "1,2,4,8", "--html", page)

    assert 0 == found.code, found.stderr
    text = page.read_text(encoding="utf-8")
    for words in ("Up to 3.33 times the rate of one instance", "one instance per thread", "2x&lt;1,4&gt;"):
        assert words in text
    assert 2 == windtunnel("serve", "plan", profile, "--batch-size", "1", "--html", page).code


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--batch-size", "9"], 1, "take 9 inputs at once"),
        (["--batch-size", "0"], 2, "no list of whole numbers"),
        (["--batch-size", ""], 2, "no batch size is given"),
        (["--batch-size", "1", "--threads", "3"], 2, "up to 2 threads, the server 3"),
        (["--batch-size", "1", "--rule", "wild"], 2, "there is no rule 'wild'"),
        (["--batch-size", "1", "--where", "mode"], 2, "such as mode=graph"),
        (["--batch-size", "1", "--where", "mode=graph"], 2, "no row has mode=graph"),
    ],
)
def test_what_cannot_be_planned_is_said(profile, more, code, message):
    found = windtunnel("serve", "plan", profile, *more)

    assert code == found.code
    assert message in " ".join(found.stderr.split())


def test_the_fewest_threads_in_time_are_chosen(profile):
    given = ("serve", "plan", "threads", profile, "--requests", "constant:rate=150,seconds=2", "--json")
    enough = windtunnel(*given, "--slo", "20ms")
    late = windtunnel(*given, "--slo", "1ms")
    document = json.loads(enough.stdout)

    assert 0 == enough.code, enough.stderr
    assert "windtunnel.serve-size/1" == document["schema"]
    assert 300 == document["num_requests"]
    assert [1, 2] == [one["threads"] for one in document["servers"]]
    assert 1 == document["chosen"]["threads"]
    assert document["chosen"]["latency_ns"] <= 20e6
    assert (1, None) == (late.code, json.loads(late.stdout)["chosen"])
    text = windtunnel(*given[:-1], "--slo", "20ms")
    assert "fewest threads that meet the SLO: 1, as <1," in text.stdout
    assert "no server meets the SLO" in windtunnel(*given[:-1], "--slo", "1ms").stdout


@pytest.mark.skipif(len(server_cores()) < 2, reason="two instances want two cores")
def test_requests_are_really_answered_beside_one_instance(tmp_path):
    model, path, ledger = tmp_path / "my_model.py", tmp_path / "p.csv", tmp_path / "receipts.db"
    model.write_text(MODEL)
    path.write_text("num_threads,batch_size,latency_ms\n1,1,0.1\n1,4,0.2\n2,1,0.3\n2,4,0.5\n2,8,0.9\n")
    done = windtunnel("serve", "plan", "threads", path, "--requests", "poisson:rate=50,seconds=1", "--slo", "0.17ms",
                      "--percentile", "100%", "--verify", f"{model}:make", "--ledger", ledger, "--json")  # fmt: skip
    document = json.loads(done.stdout)

    for one in document["flights"]:
        assert 0 < one["measured"][0]["median_ns"] <= one["measured"][0]["latency_ns"]
        assert 1 <= one["measured"][0]["num_batches"] <= document["num_requests"]
    kept = json.loads(windtunnel("db", "receipts", "--ledger", ledger, "--json").stdout)["receipts"]
    assert len(document["flights"]) - 1 == len(kept)


def test_a_profile_is_measured_planned_with_and_flown(tmp_path):
    model = tmp_path / "my_model.py"
    model.write_text(MODEL)
    job, profile, flown = f"{model}:make", tmp_path / "p.csv", tmp_path / "f.csv"
    threads = min(2, len(server_cores()))
    given = ("--max-threads", threads, "--batch-sizes", "1,2", "--rounds", "5", "--time-limit", "1s", "-o", profile)
    measured = windtunnel("serve", "profile", job, *given)
    assert 0 == measured.code, measured.stderr
    assert f"wrote {profile}" in measured.stderr
    assert 2 == windtunnel("serve", "profile", job, *given).code  # it is there

    ledger = tmp_path / "receipts.db"
    done = windtunnel("serve", "verify", job, profile, "--batch-size", "2", "--rounds", "5", "--time-limit",
                      "1s", "-o", flown, "--ledger", ledger, "--json")  # fmt: skip
    assert 0 == done.code, done.stderr
    document = json.loads(done.stdout)
    assert all(one["latency_ns"] > 0 for one in document["flights"])
    assert flown.read_text().startswith("num_threads,batch_size,latency_ms")
    kept = json.loads(windtunnel("db", "receipts", "--ledger", ledger, "--json").stdout)
    assert len(document["flights"]) - 1 == len(kept["receipts"])
    for one in document["flights"]:
        assert one["error_ratio"] == pytest.approx(one["predicted_ns"] / one["latency_ns"] - 1)
    few = windtunnel("serve", "profile", job, "--max-cells", "100%", *given[:-1], tmp_path / "few.csv", "--json")
    assert 0 == few.code, few.stderr
    assert 1 <= len(json.loads(few.stdout)["cells"]) <= 2 * threads


def test_where_no_instance_had_a_whole_batch_nothing_is_written(tmp_path):
    model, profile, flown = tmp_path / "my_model.py", tmp_path / "p.csv", tmp_path / "f.csv"
    model.write_text(MODEL)
    profile.write_text("num_threads,batch_size,latency_ms\n1,4,1\n")
    done = windtunnel("serve", "verify", f"{model}:make", profile, "--batch-size", "3", "--rounds", "5", "--time-limit",
                      "1s", "-o", flown, "--ledger", tmp_path / "receipts.db")  # fmt: skip

    assert 0 == done.code, done.stderr
    assert "no file was written" in done.stderr
    assert not flown.exists()


SERVED = """
import torch
from windtunnel.systems.serving.job import Served

def make():
    return Served(torch.nn.Identity(), lambda batch: (torch.zeros(batch, 2),),
                  preprocess=lambda bodies: (torch.tensor(bodies, dtype=torch.float64),))
"""
ONE_THREAD = "num_threads,batch_size,latency_ms\n1,1,0.1\n1,4,0.2\n"


def test_a_server_answers_over_http_until_it_is_interrupted(tmp_path):
    model, path = tmp_path / "served.py", tmp_path / "p.csv"
    model.write_text(SERVED)
    path.write_text(ONE_THREAD)
    command = [sys.executable, "-m", "windtunnel", "serve", "run", f"{model}:make", path, "--port", "0", "--json"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        url = re.search(r"http://[\d.:]+", line).group()
        answers = [asked(url, body) for body in (b"[1, 2]", b"[3, 4]", b"", b"[1", b'"x"')]
        status = asked(f"{url}/status")
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=60)

    assert [(200, [1, 2]), (200, [3, 4]), (200, None)] == [(code, one["output"]) for code, one in answers[:3]]
    assert all(one["latency_ms"] > 0 for _, one in answers[:3])
    assert [400, 422] == [code for code, _ in answers[3:]]
    assert "no JSON" in answers[3][1]["error"]
    assert ("serving", 1) == (status[1]["state"], status[1]["num_ready"])
    assert 0 == server.returncode
    document = json.loads(out)
    assert "windtunnel.serve-run/1" == document["schema"]
    assert 4 == sum(one["num_requests"] for one in document["splits"])


def asked(url, body=None):
    """Code and document."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_server_answers_the_requests_of_a_pattern(tmp_path):
    model, path = tmp_path / "my_model.py", tmp_path / "p.csv"
    model.write_text(MODEL)
    path.write_text(ONE_THREAD)
    done = windtunnel("serve", "run", f"{model}:make", path, "--batch-size", "4", "--fixed", "--requests",
                      "constant:rate=100,seconds=0.4")  # fmt: skip

    assert 0 == done.code, done.stderr
    assert "40 requests answered" in done.stdout
    assert "<1,4>" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch-size", "3"], "choose one of 1, 2, 4"),
        (["--period", "0s"], "has to be above 0"),
        (["--host", "no.such.host.invalid"], "the server cannot listen at no.such.host.invalid:8000"),
    ],
)
def test_a_server_that_cannot_be_is_said_before_it_starts(tmp_path, more, message):
    path = tmp_path / "p.csv"
    path.write_text(ONE_THREAD)
    found = windtunnel("serve", "run", "mlp", path, *more)

    assert 2 == found.code
    assert message in " ".join(found.stderr.split())
