"""Every verb on small real graphs: what it answers, and how it refuses."""

import json
import re

import pytest

from tests.cli.command import windtunnel, windtunnel_process
from tests.cli.graphs import hostile_graph, step_graph
from tests.shared_data import shared_path
from windtunnel.graph import GraphBuilder, ResourceKind, load, save

VERBS = (
    "capture",
    "explain",
    "memory",
    "diff",
    "convert",
    "slice",
    "calibrate",
    "whatif",
    "verify",
    "predict",
    "list",
    "db",
    "models",
    "demo",
    "chip",
    "cluster",
    "collectives",
    "dataio",
    "kernel",
    "pipeline",
    "place",
    "serve",
    "stalls",
    "suite",
    "train",
    "utilization",
)


@pytest.fixture
def stored(tmp_path):
    return save(step_graph(), tmp_path / "train.wt")


def test_explain_says_where_the_time_goes_in_shares_that_sum_to_the_whole(stored):
    outcome = windtunnel("explain", stored)

    assert 0 == outcome.code
    assert outcome.stdout.splitlines() == [
        "102.0 µs per iteration (±3.0, 3 iterations, Some CPU, 2 threads)",
        "  the device waits 25.0 µs of 100 µs (25 %), for:",
        "    16.0 µs (16 %) synchronization in adam",
        "    9.00 µs (9.0 %) launches of the host",
        "  it computes 75.0 µs (75 %):",
        "    product 100 % of the kernels' time",
        "  change first, by `windtunnel whatif`: amp 2.00x (saves 50.0 µs), tf32 2.00x",
        "    (saves 50.0 µs), no-sync 1.33x (saves 25.0 µs)",
        "  bottleneck: the forward phase, 60 % of the iteration",
        "  forward 60 %   backward 20 %   update 10 %   idle 10 %",
        "  critical path: 4 of 5 tasks; longest: encoder encoder forward 55.0 µs",
        "  measuring made it 25 % longer, which is taken out",
        "  unexplained: 2.0 % of the measured time",
    ]


def test_explain_says_why_device_tasks_started_when_they_did():
    outcome = windtunnel("explain", shared_path("replay/kineto/resnet_v100_train_ns.json.gz"))

    assert 0 == outcome.code
    assert re.search(r"starts of 6,095 device tasks: launch-bound [0-9.]+ %", outcome.stdout)
    assert 80 >= max(map(len, outcome.stdout.splitlines()))


def test_every_answer_names_the_next_useful_command_on_stderr(stored):
    outcome = windtunnel("explain", stored)

    assert f"next: windtunnel whatif {stored} --all\n" == outcome.stderr


def test_explain_as_json_is_one_document_with_raw_units(stored):
    document = json.loads(windtunnel("explain", stored, "--json").stdout)

    assert "windtunnel.explanation/1" == document["schema"]
    assert 100_000 == document["replayed_ns"]
    assert pytest.approx(1.0) == sum(share["ratio"] for share in document["phases"])


def test_explain_lists_every_part_when_asked(stored):
    outcome = windtunnel("explain", stored, "--by", "op")

    assert re.search(r"gemm +75\.0 µs +75 % +2", outcome.stdout)


def test_a_division_that_does_not_exist_is_answered_with_those_that_do(stored):
    outcome = windtunnel("explain", stored, "--by", "color")

    assert 2 == outcome.code
    assert (
        "error: time cannot be divided by 'color'\n  fix:   use one of phase, kind, layer, op, line, source, task\n"
        == outcome.stderr
    )


def test_replay_shows_how_busy_each_resource_is(stored):
    outcome = windtunnel("explain", "--table", "resources", stored)

    assert outcome.stdout.splitlines()[:2] == [
        "100 µs for 5 tasks; critical path: 4 of 5 tasks, 100 µs",
        "measured without profiler: 102 µs (error of the replay -2.0%)",
    ]
    assert re.search(r"stream 7 +2 +75\.0 µs +75 %", outcome.stdout)


def test_replay_writes_a_trace_that_is_json_and_never_overwrites_one(stored, tmp_path):
    trace = tmp_path / "out.json"

    first = windtunnel("explain", "--table", "resources", stored, "--perfetto", trace)
    second = windtunnel("explain", "--table", "resources", stored, "--perfetto", trace)

    assert (0, 2) == (first.code, second.code)
    assert {"encoder forward", "adam"} <= {event.get("name") for event in json.loads(trace.read_bytes())["traceEvents"]}
    assert "is there already" in second.stderr
    assert "--force" in second.stderr


def test_many_equal_ranks_are_played_once_and_it_is_said(tmp_path):
    builder = GraphBuilder()
    queue = builder.resource("stream", ResourceKind.STREAM)
    for number in range(64):
        builder.task(f"gemm {number}", duration_ns=number, resource=queue)
    ranks = save(builder.build().replicate(800), tmp_path / "ranks.wt")

    played, asked = (
        windtunnel("explain", "--table", "resources", ranks, "--json"),
        windtunnel("whatif", ranks, "faster-device", "--json"),
    )

    for outcome in (played, asked):
        document = json.loads(outcome.stdout)
        assert (64 * 800, 64) == (document["num_tasks"], document["num_played"])
    assert "51,200 tasks folded to 64" in windtunnel("explain", "--table", "resources", ranks).stdout


def test_diff_shows_the_parts_that_changed_and_nothing_else(stored, tmp_path):
    slower = save(step_graph(factor=2), tmp_path / "slower.wt")

    outcome = windtunnel("diff", stored, slower)

    assert "100 µs -> 155 µs: 0.65x" == outcome.stdout.splitlines()[0]
    assert re.search(r"gemm +75\.0 µs +130 µs +\+55\.0 µs", outcome.stdout)
    assert "adam" not in outcome.stdout


def test_diff_names_conditions_that_differ(tmp_path):
    graph = step_graph()
    ours = graph.with_meta(hardware={**graph.meta.hardware, "num_threads": 8}, origin={"script": "/a/b.py", "argv": []})
    theirs = ours.with_meta(
        hardware={**graph.meta.hardware, "num_threads": 2}, origin={"script": "/a/b.py", "argv": ["-n", "3"]}
    )
    before, after = save(ours, tmp_path / "before.wt"), save(theirs, tmp_path / "after.wt")
    outcome = windtunnel("diff", before, after)

    assert "different number of threads: 8 before, 2 after" in outcome.stdout
    assert "different script: b.py before, b.py -n 3 after" in outcome.stdout
    assert ["8", "2"] == json.loads(windtunnel("diff", before, after, "--json").stdout)["conditions"][
        "number of threads"
    ]


def test_every_verb_that_opens_a_disturbed_graph_says_so(tmp_path):
    busy = save(step_graph().with_meta(disturbance={"lost_ratio": 0.6}), tmp_path / "busy.wt")
    quiet = save(step_graph(), tmp_path / "quiet.wt")

    page = ("explain", "--html", tmp_path / "page.html", "--force")
    for verb in (("explain",), ("explain", "--table", "resources"), ("whatif", "faster-cpu"), page):
        assert "waited for a core 60% of the time" in windtunnel(verb[0], busy, *verb[1:]).stderr
        assert "waited for a core" not in windtunnel(verb[0], quiet, *verb[1:]).stderr
    spans = [
        json.loads(windtunnel("diff", graph, graph, "--json").stdout)["before_interval_ns"] for graph in (quiet, busy)
    ]
    assert spans[1][0] < spans[0][0]
    assert spans[0][1] < spans[1][1]


def test_diff_of_a_graph_with_itself_finds_no_difference(stored):
    assert "no difference" in windtunnel("diff", stored, stored).stdout


def test_slice_keeps_the_tasks_that_match_and_what_they_wait_for(stored):
    outcome = windtunnel("slice", stored, "--layer", "enc.*")
    part = load(stored.parent / "train.slice.wt")

    assert 0 == outcome.code
    assert ["encoder forward", "encoder backward"] == part.tasks.strings("name").to_numpy().tolist()
    assert 1 == part.num_edges


def test_slice_of_a_window_keeps_later_starts_where_their_cause_is_cut_off(stored):
    windtunnel("slice", stored, "--from", "64us", "--out", stored.parent / "tail.wt")
    part = load(stored.parent / "tail.wt")

    assert ["encoder backward", "adam"] == part.tasks.strings("name").to_numpy().tolist()


def test_slice_that_selects_nothing_is_a_no_and_not_an_error_of_usage(stored):
    outcome = windtunnel("slice", stored, "--layer", "decoder")

    assert 1 == outcome.code
    assert "error: no task matches all conditions" in outcome.stderr


def test_whatif_needs_to_know_what_to_ask(stored):
    outcome = windtunnel("whatif", stored)

    assert 2 == outcome.code
    assert f"error: name what-ifs, or add --all\n  fix:   windtunnel whatif {stored} --all" in outcome.stderr


def test_whatif_predicts_and_says_that_no_receipt_backs_it(stored, tmp_path):
    outcome = windtunnel("whatif", stored, "--all", "--ledger", tmp_path / "none.db")

    assert 0 == outcome.code
    assert "baseline: 100 µs per iteration" in outcome.stdout
    assert "no receipt" in outcome.stdout
    assert "more do not apply" in outcome.stdout


def test_a_whatif_that_does_not_apply_says_why_and_exits_with_1(stored, tmp_path):
    outcome = windtunnel("whatif", stored, "freeze-layers", "--ledger", tmp_path / "none.db")

    assert 1 == outcome.code
    assert "freeze-layers  not applicable:" in outcome.stdout


def test_a_misspelt_whatif_is_answered_with_the_nearest_three(stored):
    outcome = windtunnel("whatif", stored, "data-paralel")

    assert 2 == outcome.code
    assert "error: no whatif is called 'data-paralel'" in outcome.stderr
    assert re.search(r"did you mean data-parallel(, [\w-]+){0,2}\?", outcome.stderr)


def test_a_page_is_never_overwritten_without_force(stored, tmp_path):
    arguments = ("explain", stored, "--html", tmp_path / "train.html", "--ledger", tmp_path / "none.db")
    first, second, third = windtunnel(*arguments), windtunnel(*arguments), windtunnel(*arguments, "--force")

    assert (0, 2, 0) == (first.code, second.code, third.code)
    assert (tmp_path / "train.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_receipts_of_an_empty_ledger_are_none_and_no_error(tmp_path):
    outcome = windtunnel("db", "receipts", "--ledger", tmp_path / "none.db")

    assert 0 == outcome.code
    assert f"no receipts yet in {tmp_path / 'none.db'}" == " ".join(outcome.stdout.split())
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("kind", ["whatifs", "flights", "workloads", "sources"])
def test_list_shows_what_is_registered(kind):
    document = json.loads(windtunnel("list", kind, "--json").stdout)

    assert document["plugins"]
    assert all(plugin["summary"] for plugin in document["plugins"])


def test_a_misspelt_verb_is_answered_with_the_nearest_three():
    outcome = windtunnel("explian", "x.wt")

    assert 2 == outcome.code
    assert outcome.stderr.startswith(
        "error: there is no command 'explian'\n  where: windtunnel\n  fix:   did you mean explain,"
    )


def test_a_misspelt_option_is_answered_with_the_nearest(stored):
    outcome = windtunnel("explain", stored, "--jsno")

    assert 2 == outcome.code
    assert (
        "error: no such option: --jsno\n  where: windtunnel explain\n  fix:   did you mean --json?\n" == outcome.stderr
    )


def test_a_file_that_is_not_there_is_answered_with_its_neighbors(stored):
    outcome = windtunnel("explain", stored.parent / "tran.wt")

    assert 2 == outcome.code
    assert f"error: there is no {stored.parent / 'tran.wt'}\n  fix:   did you mean {stored}?\n" == outcome.stderr


def test_a_script_where_a_graph_belongs_is_answered_with_the_verb_that_takes_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")

    outcome = windtunnel("explain", script)

    assert 2 == outcome.code
    assert f"fix:   capture it first: windtunnel capture {script}" in outcome.stderr


@pytest.mark.slow
def test_a_folder_of_traces_is_one_job_of_many_ranks(tmp_path):
    for trace in shared_path("replay/kineto_dlrm_8ranks").glob("rank?.json.gz"):
        (tmp_path / trace.name).symlink_to(trace)

    document = json.loads(windtunnel("explain", tmp_path, "--json").stdout)

    assert 8 == document["num_ranks"]


def test_an_empty_folder_is_no_graph(tmp_path):
    outcome = windtunnel("explain", tmp_path)

    assert 2 == outcome.code
    assert f"error: {tmp_path} is neither a stored graph" in outcome.stderr


def test_a_trace_that_is_cut_is_refused_with_its_byte_and_sliced_on_demand(stored, tmp_path):
    whole = tmp_path / "whole.json"
    windtunnel("explain", "--table", "resources", stored, "--perfetto", whole)
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole.read_bytes()[:-400])

    refused, kept = windtunnel("explain", cut), windtunnel("slice", cut, "--partial")

    assert 2 == refused.code
    assert "byte" in refused.stderr
    assert 0 == kept.code


def test_a_window_of_a_stored_graph_is_chosen_by_time_and_not_by_annotation(stored):
    outcome = windtunnel("slice", stored, "--window", "step")

    assert 2 == outcome.code
    assert "fix:   use --from and --to instead" in outcome.stderr


def test_a_damaged_graph_names_the_file(stored):
    (stored / "tasks.parquet").write_bytes(b"no parquet")

    outcome = windtunnel("explain", stored)

    assert 2 == outcome.code
    assert "tasks.parquet cannot be read" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_debug_shows_the_traceback_wherever_it_stands(stored):
    front, back = windtunnel("--debug", "explain", "no.wt"), windtunnel("explain", "no.wt", "--debug")

    assert "Traceback" in front.stderr
    assert "Traceback" in back.stderr


def test_an_unforeseen_error_is_owned_up_to_without_a_traceback(stored, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("windtunnel.simulate.replay", fail)
    outcome = windtunnel("explain", "--table", "resources", stored)

    assert 2 == outcome.code
    assert "error: internal error in windtunnel: ZeroDivisionError: nobody thought of this" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_an_interrupt_ends_with_130(stored, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windtunnel.simulate.replay", interrupt)

    assert 130 == windtunnel("explain", "--table", "resources", stored).code


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_a_runnable_example_and_fits_in_80_columns(verb):
    outcome = windtunnel(verb, "--help")
    lines = outcome.stdout.splitlines()

    assert 0 == outcome.code
    assert lines[2].startswith(f"  Example: windtunnel {verb} ")
    assert 80 >= max(map(len, lines))


def test_the_list_of_verbs_is_short_and_complete():
    outcome = windtunnel("--help")

    assert list(VERBS) == re.findall(r"^  ([a-z-]+)   *[A-Z]", outcome.stdout.partition("Measure:")[2], re.MULTILINE)
    assert 80 >= max(map(len, outcome.stdout.splitlines()))


def test_json_answers_all_carry_their_schema(stored, tmp_path):
    ledger = ("--ledger", tmp_path / "none.db")
    commands = [
        ("explain", stored),
        ("explain", "--table", "resources", stored),
        ("diff", stored, stored),
        ("slice", stored, "--name", "adam"),
        ("whatif", stored, "--all", *ledger),
        ("explain", stored, "--html", tmp_path / "page.html", *ledger),
        ("db", "receipts", *ledger),
        ("list",),
    ]

    assert all(
        json.loads(windtunnel(*command, "--json").stdout)["schema"].startswith("windtunnel.") for command in commands
    )


def test_names_that_try_to_be_something_else_only_change_the_text_shown(tmp_path):
    stored = save(hostile_graph(), tmp_path / "hostile.wt")
    page = tmp_path / "hostile.html"
    verbs = [
        ("explain", stored, "--by", "op"),
        ("explain", "--table", "resources", stored),
        ("diff", stored, stored),
        ("explain", stored, "--html", page),
    ]

    outcomes = [windtunnel(*verb) for verb in verbs]

    assert [0, 0, 0, 0] == [outcome.code for outcome in outcomes]
    assert all(char.isprintable() or char == "\n" for outcome in outcomes for char in outcome.stdout + outcome.stderr)
    assert all(len(line) < 1000 for outcome in outcomes for line in outcome.stdout.splitlines())
    assert {"hostile.wt", "hostile.html"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_piped_output_has_no_control_codes_and_fits_in_80_columns(stored, tmp_path):
    outcome = windtunnel_process(
        "whatif", stored, "--all", "--ledger", tmp_path / "none.db", FORCE_COLOR="", TERM="xterm"
    )

    assert 0 == outcome.code
    assert "\x1b" not in outcome.stdout + outcome.stderr
    assert 80 >= max(map(len, outcome.stdout.splitlines()))


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(stored):
    import subprocess
    import sys

    command = f"{sys.executable} -m windtunnel explain {stored} --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)

    assert "" == done.stderr.replace(f"next: windtunnel whatif {stored} --all\n", "")


@pytest.mark.slow
def test_names_that_the_terminal_cannot_show_are_no_reason_to_fail(stored):
    strange = stored.rename(stored.parent / "tr\u6f22.wt")

    outcomes = [
        windtunnel_process("slice", strange, "--name", "adam", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        for encoding in ("utf-8", "ascii")
    ]

    assert [0, 2] == [outcome.code for outcome in outcomes]
    assert "tr\u6f22.slice.wt" in outcomes[0].stdout
    assert "tr\\u6f22.slice.wt is there already" in outcomes[1].stderr
