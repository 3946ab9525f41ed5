"""What the tests say of a changed file: in a copy of the tree, so that nothing is left changed.

In: a file's new text and the tests to run. Out: a ``Verdict``. A copy is one slot with a process that runs tests
(``nursery``). Compiled code that was kept on disk never hides a change: where compiled code can hold what changed, it
is taken from a copy of the kept code without that of the file and of all that import it. Not here: which tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Slot", "Verdict"]

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "demo", "_build")
COMPILE_S = 90.0
START_S = 60.0
_SLOWER = 3.0  # than when it was recorded, of CPU time
_CROWDED = 6.0  # wall over CPU, on a machine that others use
OPTIONS = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short")


@dataclass(frozen=True)
class Verdict:
    """``failed`` names the tests that saw the change; a run that hung or died was seen too."""

    is_caught: bool
    how: str
    failed: tuple[str, ...]
    seconds: float


class Slot:
    """A copy of the tree, and a process that runs its tests.

    Parameters
    ----------
    root : Path
        The project.
    folder : Path
        Where the copy and all that its tests write lie.
    seed : int
        Of what hypothesis draws.
    """

    def __init__(self, root: Path, folder: Path, seed: int) -> None:
        self.folder, self.tree, self.source = folder, folder / "project", folder / "project" / "src" / "windtunnel"
        _copy(root, self.tree)
        for name in ("home", "tmp", "numba"):
            (folder / name).mkdir(exist_ok=True)
        self._options = [*OPTIONS, f"--hypothesis-seed={seed}"]
        self._clock = int(time.time()) + 10**6  # no file has this time
        self._process: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """For processes that run tests of the copy."""
        shared = next((one / "shared/data" for one in Path(__file__).parents if (one / "shared/data").exists()), None)
        return {
            **os.environ,
            "PYTHONPATH": f"{self.source.parent}{os.pathsep}{self.tree}",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "NUMBA_CACHE_DIR": str(self.folder / "numba"),
            "OMP_WAIT_POLICY": "passive",  # threads that spin would use up the time that a run may take
            **({"WINDTUNNEL_SHARED": str(shared)} if shared and "WINDTUNNEL_SHARED" not in os.environ else {}),
        }

    def record(self, files: list[str]) -> dict[str, Any]:
        """What each test of these files runs."""
        job, answer = self.folder / "recording.json", self.folder / "recorded.json"
        job.write_text(json.dumps({"tests": files, "source": str(self.source)}))
        answer.unlink(missing_ok=True)
        command = [sys.executable, str(self.tree / "benchmarks/defects/recording.py"), str(job), str(answer)]
        with (self.folder / "recording.log").open("w") as log:
            subprocess.run(
                command, cwd=self.tree, env=self.environment(), stdout=log, stderr=log, check=True, timeout=3600
            )
        found: dict[str, Any] = json.loads(answer.read_text())
        return found

    def adopt(self, other: Slot) -> None:
        """Take over compiled code of another slot that is not here yet: a file's folder is known by its path."""
        for place in {path.parent for path in self.source.rglob("*.py")}:
            theirs = other.folder / "numba" / _kept_in(other.source / place.relative_to(self.source))
            mine = self.folder / "numba" / _kept_in(place)
            for file in theirs.glob("*"):
                if not (mine / file.name).exists():
                    mine.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, mine / file.name)

    def judge(self, path: str, text: str, stale: set[str], tests: tuple[str, ...], seconds: float) -> Verdict:
        """Run the tests with another text of a file, until one fails; what was compiled of stale files is not used."""
        limit_s = START_S + _SLOWER * seconds + (COMPILE_S if stale else 0)
        with self._changed(path, text), self._kept_code(stale) as numba:
            verdict = _verdict(self._run(tests, numba, limit_s, ["-x"]))
        if verdict.is_caught and not verdict.failed:  # no test to run again by itself
            without = _verdict(self._run(tests, self.folder / "numba", limit_s, ["-x"]))
            if without.is_caught:
                return replace(verdict, is_caught=False, how="fails without a change too")
        return verdict

    def failing(self, tests: tuple[str, ...]) -> set[str]:
        """Those of the tests that fail with nothing changed."""
        answer = self._run(tests, self.folder / "numba", 3600.0, [])
        return set(answer["failed"]) if answer["code"] in (0, 1) else set(tests)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process = None

    @contextlib.contextmanager
    def _changed(self, path: str, text: str) -> Iterator[None]:
        target = self.source / path
        before, stamp = target.read_bytes(), target.stat()
        self._clock += 10  # no two texts of a file have one time: that is how compiled code knows its source
        try:
            target.write_text(text, encoding="utf-8")
            os.utime(target, (self._clock, self._clock))
            yield
        finally:
            target.write_bytes(before)
            os.utime(target, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    @contextlib.contextmanager
    def _kept_code(self, stale: set[str]) -> Iterator[Path]:
        kept = self.folder / "numba"
        if not stale:
            yield kept
            return
        own = self.folder / "numba-changed"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(kept, own)
        for path in stale:
            place = self.source / path
            for file in (own / _kept_in(place.parent)).glob(f"{place.stem}.*"):
                file.unlink()
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _run(self, tests: tuple[str, ...], numba: Path, limit_s: float, options: list[str]) -> dict[str, Any]:
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir()
        shutil.rmtree(self.tree / ".hypothesis" / "examples", ignore_errors=True)  # of another change
        log = self.folder / "tests.log"
        Path(f"{log}.json").unlink(missing_ok=True)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        job = {"tree": str(self.tree), "tests": tests, "files": files, "numba": str(numba), "log": str(log)}
        limits = {"cpu_s": round(limit_s), "wall_s": _CROWDED * limit_s, "options": [*self._options, *options]}
        process = self._nursery()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job | limits) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that runs tests died; see {log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _nursery(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("nursery.py"))],
                cwd=self.tree,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process


def _verdict(answer: dict[str, Any]) -> Verdict:
    code, failed, seconds = answer["code"], tuple(answer["failed"]), float(answer["seconds"])
    if answer["is_late"]:
        return Verdict(True, "time", failed, seconds)
    if code is None or code == 3:
        return Verdict(True, "crash", failed, seconds)
    if code in (2, 4):
        return Verdict(True, "import", failed, seconds)
    return Verdict(code == 1, "test" if code == 1 else "none", failed, seconds)


def _kept_in(folder: Path) -> str:
    """Where numba keeps the code of a folder's files, below its own."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def _copy(root: Path, tree: Path) -> None:
    """Bring the copy up to date; a file that holds the same keeps its time, by which compiled code knows it."""
    fresh = tree.with_name("fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(root, fresh, ignore=LEFT_OUT)
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [one for one in tree.rglob("*") if one.is_file() and "__pycache__" not in one.parts]:
        if path.relative_to(tree) not in wanted:
            path.unlink()
    for name in wanted:
        if not (tree / name).exists() or (tree / name).read_bytes() != (fresh / name).read_bytes():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(fresh / name, tree / name)
    shutil.rmtree(fresh)
