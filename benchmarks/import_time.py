"""Bar: ``import windtunnel`` costs next to nothing, and ``windtunnel --help`` answers at once.

Each contestant is a fresh process, in turns; the bare interpreter is the peer, its time is taken off.
"""

import subprocess
import sys

from benchmarks.bar import interleave, is_verbose, report, table

TARGET_S = 0.3
ROUNDS = 9
CONTESTANTS = {
    "python": ["-c", "pass"],
    "import windtunnel": ["-c", "import windtunnel"],
    "windtunnel --help": ["-m", "windtunnel", "--help"],
    "import numpy": ["-c", "import numpy"],
}


def main() -> int:
    def starter(arguments: list[str]):
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    timings = interleave({name: starter(arguments) for name, arguments in CONTESTANTS.items()}, ROUNDS)
    bare = timings["python"].median
    added = {name: timing.median - bare for name, timing in timings.items() if name != "python"}
    value = added["import windtunnel"]
    if is_verbose():
        rows = [
            {"process": name, "median_s": timing.median, "over_python": timing.median / bare, "spread": timing.spread}
            for name, timing in timings.items()
        ]
        print(table(rows))
    holds = report(
        "import_time",
        value,
        f"<= {TARGET_S} s",
        value <= TARGET_S,
        python_s=bare,
        ratio_to_python=timings["import windtunnel"].median / bare,
        whole_s=timings["import windtunnel"].median,
        help_s=timings["windtunnel --help"].median,
        import_numpy_s=added["import numpy"],
        spread=timings["import windtunnel"].spread,
        rounds=ROUNDS,
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
