"""SCALE-Sim's own cycles of some layers, as JSON lines: run by ITS python, knows nothing of this package.

In: ``python scalesim_layers.py SECONDS GIB < cases``: one JSON document per line, ``{"name", "kind", "sizes", "rows",
"cols", "dataflow"}``; sizes are ``[H, W, r, s, channels, filters, stride]`` or ``[M, N, K]``. Each case runs in a
process of its own with that much time of a core and memory. Out: a line per case: its compute cycles, words read and
written, seconds of a core for the simulation alone, or why there are none. Not here: any comparison.
"""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """[general]
run_name = case
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {cols}
IfmapSramSzkB: 1024
FilterSramSzkB: 1024
OfmapSramSzkB: 1024
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Dataflow: {dataflow}
Bandwidth: 10
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""


def simulate(case: dict) -> dict:
    """One layer with the package's own classes."""
    from scalesim.layout_utils import layouts
    from scalesim.scale_config import scale_config
    from scalesim.single_layer_sim import single_layer_sim
    from scalesim.topology_utils import topologies

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("case.cfg", "case.csv", "layout.csv")]
        paths[0].write_text(CONFIG.format(**case))
        paths[1].write_text("header\n" + ",".join(["layer", *map(str, case["sizes"])]) + ",\n")
        paths[2].write_text("header\n" + ",".join(["layer", *["1"] * 20]) + ",\n")
        config, topology, layout = scale_config(), topologies(), layouts()
        config.read_conf_file(str(paths[0]))
        topology.load_arrays(topofile=str(paths[1]), mnk_inputs=case["kind"] == "gemm")
        layout.load_arrays(layoutfile=str(paths[2]))
    layer = single_layer_sim()
    before = time.process_time()
    layer.set_params(layer_id=0, config_obj=config, topology_obj=topology, layout_obj=layout, verbose=False)
    layer.run()
    layer.calc_report_data()
    seconds = time.process_time() - before
    # of the report: with prefetch, all, stalls
    items, detail = layer.get_compute_report_items(), layer.get_detail_report_items()
    return {"cycles": int(items[1] - items[2]), "x": int(detail[2]), "w": int(detail[5]), "y": int(detail[8]),
            "seconds": seconds}  # fmt: skip


def child(case: dict, seconds: int, gib: float, writer: int) -> None:
    """Run a case within its limits and write what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = simulate(case)
    except MemoryError:
        found = {"failed": "out of memory"}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:200]}
    os.write(writer, json.dumps(found).encode())


def main(seconds: int, gib: float) -> None:
    """Case by case."""
    import scalesim.single_layer_sim  # noqa: F401 - so that no child spends its time on imports

    for line in sys.stdin:
        case = json.loads(line)
        reader, writer = os.pipe()
        number = os.fork()
        if not number:
            child(case, seconds, gib, writer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            text = stream.read()
        _, status = os.waitpid(number, 0)
        ended = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "nothing"
        is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        found = json.loads(text) if text else {"failed": f"over {seconds} s" if is_slow else ended}
        print(json.dumps({**case, **found}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
