"""A run as a graph, its numbers, its page and the verbs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.command import windtunnel
from tests.systems.cluster.test_inputs import TIERS
from tests.systems.cluster.worlds import INF, POLICIES, ShapeSpeeds, cluster, world
from windtunnel.errors import InputError
from windtunnel.graph import load, save
from windtunnel.search.speeds import FreeCommunication
from windtunnel.simulate import replay
from windtunnel.systems.cluster.formats import read_jobs
from windtunnel.systems.cluster.jobs import Jobs
from windtunnel.systems.cluster.metrics import honest_notes, link_contention_fraction, summarize, use_over_time
from windtunnel.systems.cluster.model import simulate
from windtunnel.systems.cluster.page import cluster_page
from windtunnel.systems.cluster.policy import Policy
from windtunnel.systems.cluster.search import compare, tune
from windtunnel.systems.cluster.segments import segments_graph


@pytest.mark.parametrize("name", ["auto", "gandiva", "marginal"])
def test_the_replay_of_a_run_starts_every_segment_when_it_started(name, tmp_path):
    made, jobs = world(21)
    run = simulate(made, jobs, ShapeSpeeds(), POLICIES[name])
    graph = segments_graph(run).validate()

    timeline = replay(graph)

    rows, places = run.segment_placements
    segment = np.repeat(rows, run.placements["gpus"][places])
    zero = jobs.arrival_ns.min()
    assert (run.segments["start"][segment] - zero).tolist() == timeline.start_ns.tolist()
    assert (run.segments["end"][segment] - zero).tolist() == timeline.finish_ns.tolist()
    assert made.num_gpus == graph.num_resources
    assert load(save(graph, tmp_path / "run.wt")).equals(graph)
    assert replay(graph).to_perfetto(tmp_path / "run.json").stat().st_size > 1000


def test_gpu_time_is_held_idle_or_in_a_checkpoint():
    made, jobs = world(3)
    run = simulate(made, jobs, ShapeSpeeds(), POLICIES["auto"])
    gpus = jobs.gpus[run.segments["job"]]
    held = int(((run.segments["end"] - run.segments["start"]) * gpus).sum())
    summary = summarize(run)

    assert held / (made.num_gpus * run.makespan_ns) == pytest.approx(summary.utilization, rel=1e-9)
    _, share = use_over_time(run, 37)
    assert share.mean() == pytest.approx(summary.utilization, rel=1e-9)
    assert ((share > -1e-9) & (share < 1 + 1e-9)).all()


def test_equal_jobs_alone_have_the_numbers_that_one_can_say():
    jobs = Jobs.of(arrival_s=[0, 0], gpus=[2, 2], work_s=[3600, 7200], model=["vgg", "vgg"])
    summary = summarize(simulate(cluster(4, 1), jobs, ShapeSpeeds(), Policy()))

    assert (2.0, 1.5, 0.0, 0.0, 0.75) == (
        summary.makespan_h, summary.mean_jct_h, summary.mean_queueing_h, summary.communication_share,
        summary.utilization,
    )  # fmt: skip
    assert np.isnan(summary.mean_jct_single_h)


def test_how_long_jobs_sent_over_the_same_link_is_counted():
    """Two jobs of 6 on two machines of 4 and one: the second's 2 GPUs of the second machine send beside the first."""
    jobs = Jobs.of(arrival_s=[0, 40], gpus=[6, 4], work_s=[100, 100], model=["vgg", "vgg"])
    speeds = FreeCommunication()
    alone = simulate(cluster(4, 3), jobs.take(np.array([0])), speeds, Policy(order="fifo", has_lease=False))
    both = simulate(cluster(4, 3), jobs, speeds, Policy(order="fifo", has_lease=False))
    apart = simulate(cluster(4, 4), jobs, speeds, Policy(order="fifo", has_lease=False))

    assert 0.0 == link_contention_fraction(alone)
    # the second takes the whole third machine: nothing is shared
    assert 0.0 == link_contention_fraction(both) == link_contention_fraction(apart)
    wide = Jobs.of(arrival_s=[0, 40], gpus=[6, 5], work_s=[100, 100], model=["vgg", "vgg"])
    shared = simulate(cluster(4, 3), wide, speeds, Policy(order="fifo", has_lease=False))
    # from 40 to 100 s both send from the second machine; each runs 100 s
    assert link_contention_fraction(shared) == pytest.approx((60 + 60) / 200)
    assert not [text for text in honest_notes(shared) if "same link" in text]  # communication costs nothing here
    costly = simulate(cluster(4, 3), wide, ShapeSpeeds(), Policy(order="fifo", has_lease=False))
    assert [text for text in honest_notes(costly) if "another job sent over the same link" in text]


def test_a_headline_that_hangs_on_one_straggler_says_so():
    jobs = Jobs.of(arrival_s=[0] * 5, gpus=[1, 1, 1, 1, 5], work_s=[100, 100, 100, 100, 900], job_id=list("abcde"))
    run = simulate(cluster(4, 2), jobs, ShapeSpeeds(), Policy(order="fifo", has_lease=False))

    (note,) = [text for text in honest_notes(run) if "makespan" in text]
    assert "job e (5 GPUs)" in note
    assert "one straggler: without it the makespan is" in note


def test_the_best_pair_of_timers_is_the_smallest_mean():
    made, jobs = world(2)
    found = tune(made, jobs, ShapeSpeeds(), Policy(order="nw_sens"), leases=[0, 1, 3])

    assert 6 == len(found.pairs)
    assert found.pairs[found.best].mean_jct_h == min(one.mean_jct_h for one in found.pairs.values())
    with pytest.raises(InputError, match="no policy to compare"):
        compare(made, jobs, ShapeSpeeds(), {})


def test_equal_tiers_make_all_timers_equal():
    """Where placement costs nothing, only the order can matter."""
    made, jobs = world(9, num_jobs=40)

    class Free:
        def speed(self, model, batch, shape):
            return 1.0

    found = compare(made, jobs, Free(), {name: POLICIES[name] for name in ("nowait", "consolidated", "auto")})

    assert max(one.run.makespan_ns for one in found) < 1.3 * min(one.run.makespan_ns for one in found)


def test_a_page_shows_what_ran_and_escapes_what_it_was_called(tmp_path):
    jobs = Jobs.of(arrival_s=[0, 1], gpus=[1, 2], work_s=[50, 60], job_id=["<b>", "ok"], model=["vgg", "vgg"])
    found = compare(cluster(2, 2), jobs, ShapeSpeeds(), {"nowait": Policy(), "late": Policy(rack_timer_s=INF)})
    page = cluster_page(found, tmp_path / "page.html", notes=["a note"]).read_text()

    assert "<title>&lt;b&gt; vgg, 1 GPUs" in page
    assert "a note" in page
    assert "rack 0 machine 1" in page


JOBS = "job_id,arrival_s,gpus,model,iterations,s_per_iteration\n" + "".join(
    f"j{row},{row * 60},{(1, 2, 4, 6)[row % 4]},vgg,{500 + 90 * row},10\n" for row in range(40)
)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.json").write_text(json.dumps({"tiers": TIERS}))
    layers = tmp_path / "layers"
    layers.mkdir()
    head = "layer,fwd_ns,input_grad_ns,weight_grad_ns,wg_comm,wg_comm_bytes\n"
    (layers / "vgg_b32.csv").write_text(head + "conv,1000000,1000000,1000000,ALLREDUCE,2000000\n" * 4)
    return tmp_path


def test_the_verbs_answer_in_words_and_in_json(files):
    given = [files / "jobs.csv", "--cluster", files / "cluster.json", "--speeds", files / "layers"]

    said = windtunnel("cluster", "plan", *given, "--policies", "dally tiresias windtunnel", "--html", files / "p.html")
    assert 0 == said.code, said.stderr
    assert "tiresias" in said.stdout
    assert "makespan ends with job" in " ".join(said.stdout.split())
    assert (files / "p.html").exists()

    run = windtunnel("cluster", "predict", *given, "--policy", "dally-manual:rack_timer_h=0.5", "--json",
                     "--graph", files / "run.wt")  # fmt: skip
    document = json.loads(run.stdout)
    assert document["schema"] == "windtunnel.cluster/1"
    assert document["makespan_h"] > 0
    assert 0 == windtunnel("explain", "--table", "resources", files / "run.wt").code

    tuned = json.loads(windtunnel("cluster", "plan", "timers", *given, "--timers", "0,2", "--json").stdout)
    assert 3 == len(tuned["pairs"])
    more = windtunnel("cluster", "predict", *given, "--generate", "30", "--models", "vgg=1", "--overlap", "--json",
                      "--write-jobs", files / "made.csv")  # fmt: skip
    assert 0 == more.code, more.stderr
    assert 30 == len(read_jobs(files / "made.csv").jobs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "daly"], "no policy is called 'daly'"),
        (["--policy", "dally:speed=3"], "has no parameter 'speed'"),
        (["--speeds", "nowhere"], "no layer tables"),
        (["--shape", "round"], "no rule of shapes"),
        (["--models", "vgg=many"], "no shares"),
        (["--models", "bert=1"], "nothing is known of the model 'bert'"),
        (["--arrival-speedup", "0"], "0.0 times as fast"),
    ],
)
def test_what_is_wrong_with_a_question_is_said(files, options, message):
    given = [files / "jobs.csv", "--cluster", files / "cluster.json"]
    if "--speeds" not in options:
        given += ["--speeds", files / "layers"]
    found = windtunnel("cluster", "predict", *given, *options)

    assert 2 == found.code
    assert message in found.stderr


def test_jobs_that_are_too_large_can_be_left_out(files):
    (files / "jobs.csv").write_text(JOBS + "large,0,96,vgg,10,1\n")
    given = [files / "jobs.csv", "--cluster", files / "cluster.json"]

    refused = windtunnel("cluster", "predict", *given)
    assert "job large asks for 96 GPUs, the cluster has 16" in refused.stderr
    kept = windtunnel("cluster", "predict", *given, "--skip-too-large")
    assert "1 jobs are larger than the cluster and were left out" in kept.stdout
