"""The command that drives jobs through Slurm."""

import json

import pytest

from tests.systems.cluster.slurm.test_slurm import CLUSTER
from windtunnel.cli import main
from windtunnel.systems.cluster.slurm.local import can_run_slurm

JOBS = "job_id,arrival_s,gpus,model,iterations,s_per_iteration\na,0,2,,2,1\nb,1,4,,1,4\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS, encoding="utf-8")
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER.json()), encoding="utf-8")
    return [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.json")]


def test_policies_that_decide_later_are_refused(files, capsys):
    assert main(["cluster", "run", *files, "--policy", "dally"]) == 2
    assert "cluster plan timers finds fixed timers" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not can_run_slurm(), reason="needs slurm-wlm and munge, as root")
def test_what_was_driven_is_printed_beside_what_was_predicted(files, capsys):
    assert main(["cluster", "run", *files, "--local", "--json"]) == 0
    found = {one["job_id"]: one for one in json.loads(capsys.readouterr().out)["jobs"]}

    assert {"COMPLETED"} == {one["state"] for one in found.values()}
    for one in found.values():
        assert one["started_s"] == pytest.approx(one["predicted_start_s"], abs=4)
        assert one["ended_s"] - one["started_s"] == pytest.approx(
            one["predicted_end_s"] - one["predicted_start_s"], abs=2
        )
