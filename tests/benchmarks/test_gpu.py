"""The stages for a machine with a GPU, gone through on the host: nothing is done twice, nothing is lost."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter

import pytest
from benchmarks.bar import ROOT
from benchmarks.gpu import case_kernels, histories, operators, pairs, training_cases
from benchmarks.gpu.cases import ELEMENT_BYTES, LIMITS, SHARES, _work, case
from benchmarks.gpu.stages import STAGES, Job, is_done, plan_lines, run_stage
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cost.operators.table import read_op_set

BLOCKED = "import sys\nfor name in ('numba', 'pyarrow', 'msgspec', 'typer', 'rich'): sys.modules[name] = None\n"


def job(folder, budget_s=600.0):
    return Job("cpu", folder, time.monotonic() + budget_s, is_small=True)


@given(st.integers(0, 30_000), st.booleans())
def test_a_case_is_the_same_every_time_and_within_its_limits(number, is_small):
    one = case(number, is_small=is_small)
    num_elements, num_flops = _work(one.kind, one.sizes)

    assert one == case(number, is_small=is_small)
    assert num_elements * ELEMENT_BYTES[one.form] <= LIMITS[is_small][0]
    assert num_flops <= LIMITS[is_small][1]
    assert min(size for name, size in one.sizes.items() if name not in ("padding", "causal")) >= 1


def test_any_thirty_two_cases_in_a_row_are_a_fair_sample():
    for first in (0, 17, 320):
        assert Counter(SHARES) == Counter(case(number).kind for number in range(first, first + 32))


def test_every_form_of_arithmetic_is_drawn():
    forms = Counter((one.kind, one.form) for one in map(case, range(32 * 12)))

    assert {"fp32", "tf32", "bf16", "fp16"} == {form for kind, form in forms if kind == "linear"}
    assert {"fp32", "bf16", "fp16"} == {form for kind, form in forms if kind == "pointwise"}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(operators, "NUM_SMALL", 14)
    monkeypatch.setattr(operators, "CASE_S", 0.0)
    monkeypatch.setattr(operators, "ROUND_NS", 1)


def test_a_stage_that_was_cut_off_goes_on_where_it_was(few, tmp_path):
    whole = run_stage("operators", job(tmp_path))
    path = tmp_path / "operators" / "part-000.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-3]) + '\n{"number": 13, "lat')  # killed while it wrote
    (tmp_path / "operators" / "part-000.json").unlink()
    again = run_stage("operators", job(tmp_path))
    kept = path.read_text().splitlines()

    assert lines[:-3] == kept[: len(lines) - 3]
    assert (14, 14, True) == (whole["num_timings"], again["num_timings"], again["is_complete"])


def test_a_case_that_took_the_process_with_it_twice_is_not_tried_again(few, tmp_path):
    folder = tmp_path / "operators"
    folder.mkdir()
    (folder / "part-000.jsonl").write_text('{"number": 5, "begun": true}\n' * 2)
    told = run_stage("operators", job(tmp_path))

    assert (13, 1) == (told["num_timings"], told["num_failed_cases"])
    assert "the process ended in this case (1)" in (folder / "DATASHEET.md").read_text()


def test_what_is_timed_can_be_read_as_an_op_set(few, tmp_path):
    run_stage("operators", job(tmp_path))
    table = read_op_set(tmp_path / "operators" / "fp32" / "train_matmul.csv")

    assert {"linear", "bmm"} >= set(table.op)
    assert (table.latency_ms > 0).all()


def test_without_time_nothing_is_begun(few, tmp_path):
    told = run_stage("operators", job(tmp_path, budget_s=0.0))

    pending = {"part-000": "not begun", "training-000": "not begun"}
    assert (0, False, pending) == (told["num_done"], told["is_complete"], told["pending"])


def test_what_failed_is_tried_again_only_if_asked():
    assert is_done({"failed": "out of memory"}, is_again=False)
    assert not is_done({"failed": "out of memory"}, is_again=True)
    assert not is_done({"pending": "needs msgspec"}, is_again=False)


def stages(folder, *names, paths=()):
    search = os.pathsep.join([*map(str, paths), str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.gpu", *names, "--device", "cpu", "--small", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search}, cwd=ROOT)
    assert not done.returncode, done.stderr
    return {line["stage"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def recorded_pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return folder / "pairs", stages(folder, "pairs")["pairs"]


def test_a_script_is_recorded_part_by_part_and_its_change_run_in_turns(recorded_pairs):
    folder, line = recorded_pairs
    rows = {unit: json.loads((folder / f"{unit}.json").read_text()) for unit in pairs.SMALL_UNITS}
    script, change = rows.values()

    assert (True, {}, {}) == (line["is_complete"], line["failed"], line["failed_parts"])
    assert ["SGD"] == [one["kind"] for one in script["facts"]["optimizers"]]
    assert pairs.FEWEST_PAIRS <= len(change["base"]["blocks_ns"]) == len(change["changed"]["blocks_ns"])
    assert change["changed"]["losses_are_finite"]


def test_a_trace_and_an_execution_trace_of_one_window_join(recorded_pairs):
    files = recorded_pairs[0] / "files"
    rich, execution = (
        json.loads(gzip.decompress((files / f"perceptron-{kind}.json.gz").read_bytes()))
        for kind in ("rich", "execution")
    )
    operators = [event for event in rich["traceEvents"] if event.get("cat") == "cpu_op"]
    known = {
        attribute["value"] for node in execution["nodes"] for attribute in node["attrs"] if attribute["name"] == "rf_id"
    }

    assert operators
    assert {event["args"]["Record function id"] for event in operators} <= known


def test_frames_of_scripts_and_modules_survive_in_a_trace_made_small(tmp_path):
    names = ["benchmarks/gpu/scripts/perceptron.py(66): step", "nn.Module: Linear_0", "torch/_ops.py(1): __call__"]
    events = [{"cat": "python_function", "name": name} for name in names] + [{"cat": "kernel", "name": "gemm"}]
    histories.write_gz(tmp_path / "trace.json.gz", {"traceEvents": events})
    num_dropped = histories.slim(tmp_path / "trace.json.gz", max_bytes=0)
    kept = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]

    assert (1, [*names[:2], "gemm"]) == (num_dropped, [event["name"] for event in kept])


def test_the_allocators_history_names_the_innermost_line_of_a_script():
    frames = [{"filename": "/torch/nn/linear.py", "line": 1}, {"filename": "/gpu/scripts/perceptron.py", "line": 70}]
    entries = [{"action": "alloc", "addr": 8, "size": 512, "time_us": 3, "stream": 0, "frames": frames}]
    found = histories.compact([*entries, {"action": "free_completed", "addr": 8, "size": 512, "frames": []}])

    assert ["perceptron.py:70"] == found["lines"]
    assert [[0, 8, 512, 3, 0, 0], [1, 8, 512, 0, 0, -1]] == found["rows"]


@pytest.mark.slow
def test_a_machine_with_torch_and_numpy_alone_records_and_another_judges(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BLOCKED)
    bare = stages(tmp_path / "out", "check", "operators", "steps", paths=[tmp_path / "bare"])
    recorded = (tmp_path / "out" / "steps" / "recorded" / "mlp.json").read_text()
    judged = stages(tmp_path / "out", "operators", "steps")

    assert ["numba", "pyarrow", "msgspec"] == bare["check"]["lacking"]
    assert (True, False) == (bare["operators"]["is_complete"], bare["steps"]["is_complete"])
    assert judged["steps"]["is_complete"]
    assert recorded == (tmp_path / "out" / "steps" / "recorded" / "mlp.json").read_text()
    assert judged["operators"]["num_timings"] == bare["operators"]["num_timings"]


@pytest.mark.slow
def test_every_stage_runs_to_its_end_without_a_gpu(tmp_path):
    told = stages(tmp_path / "out")

    assert list(STAGES) == list(told)
    assert {name: {} for name in STAGES} == {name: line["failed"] for name, line in told.items()}
    assert all(line["is_complete"] for line in told.values())
    assert told["steps"]["replay_median"] < 0.1
    assert told["memory"]["median"] < 0.05
    assert told["whatifs"]["num_flown"] >= 1


@given(st.integers(training_cases.FIRST, training_cases.FIRST + 30_000), st.booleans())
def test_a_training_case_is_the_same_every_time_and_within_its_limits(number, is_small):
    drawn = training_cases.training_case(number, is_small=is_small)
    num_elements, num_flops = training_cases.KINDS[drawn.kind].work(drawn.sizes)

    assert drawn == training_cases.training_case(number, is_small=is_small)
    assert num_elements * ELEMENT_BYTES[drawn.form] <= LIMITS[is_small][0]
    assert num_flops <= LIMITS[is_small][1]


def test_every_kind_of_training_case_runs_and_names_what_it_reads():
    kinds = Counter()
    for number in range(
        training_cases.FIRST, training_cases.FIRST + sum(k.share for k in training_cases.KINDS.values())
    ):
        drawn = training_cases.training_case(number, is_small=True)
        call = training_cases.call_of(drawn, "cpu")
        call.run()
        kinds[drawn.kind] += 1

        assert call.aten
        assert all(tensor.numel() for tensor in call.tensors)
    assert kinds == {name: kind.share for name, kind in training_cases.KINDS.items()}


def test_kernels_belong_to_the_case_whose_mark_they_lie_in():
    marks = [{"cat": "user_annotation", "name": f"case:{n}", "ts": 10.0 * n, "dur": 8.0} for n in (1, 2, 3)]
    launch = {"grid": [2, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
    inside = {"cat": "kernel", "name": "void gemm<float>(float*)", "ts": 21.0, "dur": 1.5, "args": launch}
    outside = {**inside, "ts": 9.0}
    found = case_kernels.by_case([inside, *marks, outside, {"ph": "M"}])

    assert ["gemm<float>"] == found["names"]
    assert {"1": [], "2": [[0, [2, 1, 1], [128, 1, 1], 32, 0, 1500]], "3": []} == found["cases"]


def test_the_data_of_the_h200_is_whole():
    folder = ROOT / "benchmarks" / "gpu" / "h200" / "operators"
    rows = [json.loads(line) for line in gzip.decompress((folder / "training.jsonl.gz").read_bytes()).splitlines()]
    kernels = json.loads(gzip.decompress((folder / "kernels.json.gz").read_bytes()))

    assert 2304 == len({row["number"] for row in rows})
    assert all(row["latency_ms"] > 0 and row["aten"] for row in rows)
    assert {str(row["number"]) for row in rows} <= set(kernels["cases"])
    for row in rows[:64]:
        drawn = training_cases.training_case(row["number"])
        assert (drawn.kind, drawn.form) == (row["kind"], row["dtype"])


def test_a_plan_names_what_fits_and_begins_where_asked(tmp_path):
    asked = Job("cpu", tmp_path, time.monotonic() + 100.0, first_unit="training-009")
    (_, line) = plan_lines(["operators"], asked)

    assert line.startswith("operators: ")
    assert "training-009 to " in line
