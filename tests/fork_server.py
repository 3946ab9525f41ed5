"""Python processes of tests as forks of one process that has loaded torch, which takes each new process seconds.

``forked_processes()`` lets ``subprocess.Popen`` start ``python -m windtunnel...`` and ``python script.py`` as forks of
a server, which it starts when it needs the first. A fork is what a new process would be: a child of this process with
the arguments, environment, folder, cores, process group, and open files that were asked for; it ends as Python ends.

    this process ── subprocess.Popen ──▶ server (loads torch, starts no thread)
         ▲                                 └─ forks ─▶ (ends at once) ─ forks ─▶ the process asked for
         └───────────────── becomes its parent, as the nearest subreaper ◀─────────────┘

Everything else is started as always: ``python -c``, another interpreter, another checkout of the package, or an
environment that libraries read as they load. ``real_processes()`` is for tests of what a process loads.
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = _ROOT / "src"
# what many processes load, most of it through torch's optimizers; nothing here may start a thread
_LOADED = (
    "torch.distributed",
    "torch.multiprocessing",
    "torch.profiler",
    "torch.utils.data",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.standalone_compile",
    "windtunnel.cli",
    "windtunnel.flights",
    "windtunnel.graph",
    "windtunnel.measure.worker",
    "windtunnel.measure.workers",
    "windtunnel.sources.torch.step",
    "windtunnel.workloads",
)
# libraries read these as they load: a process that has others than the server is a real one
_READ_AT_LOAD = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMBA_",
    "LD_",
    "TORCH",
    "PYTORCH",
    "MALLOC_",
    "GLIBC_",
    "CUDA",
)
# these are followed after the fork, as torch does; how idle threads wait changes no result
_FOLLOWED = {
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "PYTHONUNBUFFERED",
    "TORCHINDUCTOR_CACHE_DIR",
}
_TITLE_BYTES = 8192
_FIRST_FD = 300  # received files are put above this number before they get theirs
_HEADER = struct.Struct("=I")


# --- in the process that asks -------------------------------------------------------------------------------------


class _Server:
    """The server of this process, started when it is first needed."""

    def __init__(self) -> None:
        self.owner, self._line, self._process = os.getpid(), None, None
        self._lock = threading.Lock()
        self._environment = _environment_at_load(os.environ)

    def accepts(self, arguments: Sequence[str], folder: str | None, environment: Mapping[str, str]) -> bool:
        """Whether a fork would be what was asked for."""
        return (
            self.owner == os.getpid()
            and _is_known_command(arguments)
            and _environment_at_load(environment) == self._environment
            and (folder is None or Path(folder).is_dir())
            and not any(_has_other_package(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep))
        )

    def start(self, request: dict[str, object], fds: Sequence[int]) -> int:
        """Start a process; gives its number."""
        with self._lock:
            if self._line is None:
                self._line, self._process = _start_server()
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                _send(self._line, request, fds)
                process_id, _ = _receive(self._line)
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if isinstance(process_id, BaseException):
            raise process_id
        return int(process_id)

    def close(self) -> None:
        """End the server; processes that it started go on."""
        if self._line is not None and self.owner == os.getpid():
            self._line.close()
            self._process.wait()
            self._line = None


def _environment_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_LOAD) and name not in _FOLLOWED
    }


def _is_known_command(arguments: Sequence[str]) -> bool:
    if len(arguments) < 2 or arguments[0] != sys.executable:
        return False
    if arguments[1] == "-m":
        return len(arguments) > 2 and arguments[2].split(".")[0] == "windtunnel"
    return arguments[1].endswith(".py") and Path(arguments[1]).is_file()


def _has_other_package(path: str) -> bool:
    folder = Path(path or ".")
    return (folder / "windtunnel").exists() and folder.resolve() != _SOURCE


def _start_server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # no threads as libraries load: those of OpenMP, OpenBLAS, and jemalloc in pyarrow
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    # the package that is tested, which need not be the one that is installed
    start = (
        f"import sys; {str(_SOURCE)!r} in sys.path or sys.path.insert(0, {str(_SOURCE)!r}); "
        f"sys.path.append({str(_ROOT)!r}); "
        f"from tests.fork_server import serve; serve({theirs.fileno()})"
    )
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", start, " " * _TITLE_BYTES], pass_fds=[theirs.fileno()], env=environment, cwd="/"
        )
    return ours, process


_SERVER: _Server | None = None
_execute_child = subprocess.Popen._execute_child


def _execute_or_fork(
    self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask, start_new_session,
    process_group,
):  # fmt: skip
    """What ``subprocess.Popen`` calls to start a process."""
    environment = dict(os.environ if env is None else env)
    folder = None if cwd is None else os.fspath(cwd)
    is_plain = (
        close_fds
        and restore_signals
        and not (executable or preexec_fn or shell or gid or gids or uid or start_new_session or umask != -1)
    )
    arguments = (
        [os.fspath(word) for word in args] if is_plain and not isinstance(args, str | bytes | os.PathLike) else []
    )
    if _SERVER is None or not arguments or not _SERVER.accepts(arguments, folder, environment):
        _execute_child(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
            start_new_session, process_group,
        )  # fmt: skip
        return
    sys.audit("subprocess.Popen", arguments[0], args, cwd, env)
    streams = [theirs if theirs != -1 else fd for fd, theirs in enumerate((p2cread, c2pwrite, errwrite))]
    group = os.getpgid(0) if process_group == -1 else process_group
    request = {
        "arguments": arguments,
        "environment": environment,
        "folder": folder or str(Path.cwd()),
        "group": group,
        "cores": os.sched_getaffinity(0),
        "parent": os.getpid(),
        "targets": [0, 1, 2, *pass_fds],
    }
    self.pid = _SERVER.start(request, [*streams, *pass_fds])
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


@contextlib.contextmanager
def forked_processes() -> Iterator[None]:
    """Within it, processes are forks of a server where they can be."""
    global _SERVER
    if not sys.platform.startswith("linux"):
        yield
        return
    server = _SERVER = _Server()
    subprocess.Popen._execute_child = _execute_or_fork
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _execute_child
        _SERVER = None
        server.close()


@contextlib.contextmanager
def real_processes() -> Iterator[None]:
    """Within it, every process is started as always."""
    global _SERVER
    server, _SERVER = _SERVER, None
    try:
        yield
    finally:
        _SERVER = server


# --- messages -----------------------------------------------------------------------------------------------------


def _send(line: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    body = pickle.dumps(message)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    line.sendmsg([_HEADER.pack(len(body))], ancillary)
    line.sendall(body)


def _receive(line: socket.socket) -> tuple[object, list[int]]:
    header, fds, _, _ = socket.recv_fds(line, _HEADER.size, 64)
    if not header:
        raise EOFError
    size, body = _HEADER.unpack(header)[0], b""
    while len(body) < size:
        body += line.recv(size - len(body))
    return pickle.loads(body), fds


# --- in the server ------------------------------------------------------------------------------------------------


def serve(fd: int) -> None:
    """Load what processes need, and fork off those that are asked for, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = socket.socket(fileno=fd)
    paths = sys.path[1:-1]  # without what was added to find this
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    title = _title_address()
    while True:
        try:
            request, fds = _receive(line)
        except EOFError:
            return
        num_threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        assert num_threads == 1, "a thread runs in the server: a lock that it holds would never be released in a fork"
        heard, told = os.pipe()
        between = os.fork()
        if between == 0:
            _fork_again(request, fds, line, heard, told, paths, title)
        os.close(told)
        for received in fds:
            os.close(received)
        os.waitpid(between, 0)
        answer = os.read(heard, 64)  # nothing if it ended before it could say who it is
        os.close(heard)
        _send(line, int(answer) if answer else RuntimeError("the process could not be forked"))


def _fork_again(
    request: dict, fds: list[int], line: socket.socket, heard: int, told: int, paths: list[str], title: tuple[int, int]
) -> None:
    """Fork the process that was asked for, and end: so it becomes a child of the process that asked."""
    child = os.fork()
    if child:
        os._exit(0)
    code = 1
    try:
        parent = request["parent"]
        while os.getppid() != parent:
            os.sched_yield()
        line.close()
        os.close(heard)
        _become(request, fds, paths, title)
        os.write(told, str(os.getpid()).encode())
        os.close(told)
        code = _run(request["arguments"])
    finally:
        os._exit(code)


def _become(request: dict, fds: list[int], paths: list[str], title: tuple[int, int]) -> None:
    """Take over all that a process gets from the one that starts it."""
    arguments, environment = request["arguments"], request["environment"]
    os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, target in zip(high, request["targets"], strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    _set_title(arguments, title)
    _open_streams()
    _set_threads(arguments, environment)
    sys.modules["torch"].random.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*added, *paths]
    sys.orig_argv = list(arguments)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__builtins__ = builtins
    importlib.invalidate_caches()


def _open_streams() -> None:
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = open(fd, f"{mode}b", buffering=0 if is_unbuffered and fd else -1, closefd=False)  # noqa: SIM115
        old = getattr(sys, name)
        by_line = not is_unbuffered and (fd == 2 or os.isatty(fd))
        through = is_unbuffered and fd > 0
        stream = io.TextIOWrapper(
            raw, encoding=old.encoding, errors=old.errors, line_buffering=by_line, write_through=through
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _set_threads(arguments: list[str], environment: Mapping[str, str]) -> None:
    """As many threads as torch would take if it were loaded now; a worker keeps to its cores before it loads torch."""
    cores = len(os.sched_getaffinity(0))
    if arguments[1:3] == ["-m", "windtunnel.measure.worker"] and arguments[5] != "-":
        cores = len(arguments[5].split(","))
    sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", cores)))


def _title_address() -> tuple[int, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])  # arg_start, arg_end


def _set_title(arguments: list[str], title: tuple[int, int]) -> None:
    """Let /proc say the command of this process, not that of the server."""
    start, end = title
    words = b"\0".join(map(os.fsencode, arguments))[: end - start - 1]
    ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)


def _run(arguments: list[str]) -> int:
    """Run a module or a script as the interpreter does, and end as it does."""
    code = 0
    try:
        if arguments[1] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = ["-m", *arguments[3:]]
            runpy._run_module_as_main(arguments[2])
        else:
            sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
            sys.argv = arguments[1:]
            _run_script(arguments[1])
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException as error:
        traceback.print_exception(type(error), error, _without_server(error.__traceback__))
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    with contextlib.suppress(Exception):
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def _run_script(path: str) -> None:
    main = sys.modules["__main__"]
    main.__file__ = path
    main.__spec__ = None
    exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


def _without_server(where: types.TracebackType | None) -> types.TracebackType | None:
    while where is not None and where.tb_frame.f_code.co_filename == __file__:
        where = where.tb_next
    return where
