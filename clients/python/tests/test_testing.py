"""The fixtures for applications, used as an application uses them: by a pytest of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from conftest import MODULE, eventually, free_port

from rlock_redis import RLockClient
from rlock_redis.testing import RLockServer

TESTS = """
import redis
import pytest
from rlock_redis import RLockClient

@pytest.mark.parametrize("n", [1, 2])
def test_lock(rlock_server, rlock_session_server, n):
    admin = redis.Redis(port=rlock_server.port)
    assert admin.keys() == []
    print(f"pid={rlock_server.pid}", rlock_server is rlock_session_server)
    with RLockClient(redis.Redis.from_url(rlock_server.url)) as locks:
        assert locks.lock("left").acquire()  # Not released, as by a test that fails.
        admin.set("also", "left")
"""


def application(folder: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text('pytest_plugins = ["rlock_redis.testing"]\n')
    (folder / "test_orders.py").write_text(TESTS)
    env = {**os.environ, "TMPDIR": str(folder / "tmp"), **environment}
    (folder / "tmp").mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    kept = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(command, env=kept, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOCK_MODULE", MODULE)


def test_each_test_finds_an_empty_server_which_ends_with_the_session(tmp_path: Path) -> None:
    result = application(tmp_path, RLOCK_MODULE=MODULE)
    assert "2 passed" in result.stdout, result.stdout + result.stderr
    pids = {int(line.split("pid=")[1].split()[0]) for line in result.stdout.splitlines() if "pid=" in line}
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids.pop(), 0)
    assert list((tmp_path / "tmp").glob("rlock-test-*")) == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RLOCK_MODULE": "/nowhere/librlock.so"}, "RLOCK_MODULE is '/nowhere/librlock.so', which is not a file"),
        ({"RLOCK_MODULE": MODULE, "RLOCK_SERVER": "no-such-server"}, "RLOCK_SERVER is 'no-such-server'; expected"),
        ({"RLOCK_MODULE": MODULE, "RLOCK_SERVER": "/usr/bin"}, "RLOCK_SERVER is '/usr/bin'; expected"),
        ({"RLOCK_MODULE": MODULE, "RLOCK_SERVER": "", "PATH": "/nowhere"}, "found neither redis-server nor"),
        ({"RLOCK_MODULE": MODULE, "PATH": "/nowhere"}, "found neither redis-server nor valkey-server in PATH"),
        ({"RLOCK_MODULE": __file__}, "ended; its log ends with"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    result = application(tmp_path, **environment)
    assert "2 errors" in result.stdout
    assert message in result.stdout
    assert list((tmp_path / "tmp").glob("rlock-test-*")) == []


def test_the_installed_module_is_used_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLOCK_MODULE", raising=False)
    monkeypatch.setattr("rlock_redis.testing.INSTALLED_MODULE", MODULE)
    with RLockServer() as server, RLockClient(redis.Redis(port=server.port)) as locks, locks.lock("k") as hold:
        assert hold.token > 0
    monkeypatch.setattr("rlock_redis.testing.INSTALLED_MODULE", "/nowhere/librlock.so")
    with pytest.raises(RuntimeError, match=r"RLOCK_MODULE is not set and /nowhere/librlock.so does not exist"):
        RLockServer()
    monkeypatch.setenv("RLOCK_MODULE", "")
    with pytest.raises(RuntimeError, match=r"RLOCK_MODULE is not set"):
        RLockServer()


def test_a_port_that_another_process_took_is_replaced(module: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with RLockServer() as first:
        ports = iter([first.port, first.port])
        monkeypatch.setattr("rlock_redis.testing._free_port", lambda: next(ports, None) or free_port())
        with RLockServer() as second:
            assert second.port != first.port
            assert redis.Redis(port=second.port).info("server")["process_id"] == second.pid


def test_options_reach_the_server_and_a_refused_flush_is_told(module: None) -> None:
    with RLockServer("--requirepass", "secret") as server:
        assert redis.Redis(port=server.port, password="secret").ping()
        with pytest.raises(RuntimeError, match="FLUSHALL was refused: NOAUTH"):
            server.flush()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.parametrize("options", [("--logfile", "elsewhere"), ("--loglevel", "warning")])
def test_a_server_that_logs_nothing_to_its_output_is_ready(
    module: None, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    with RLockServer() as first:
        ports = iter([first.port])
        monkeypatch.setattr("rlock_redis.testing._free_port", lambda: next(ports, None) or free_port())
        with RLockServer(*options) as second:
            assert redis.Redis(port=second.port).info("server")["process_id"] == second.pid


STARTS = """
import os, sys, time
from rlock_redis.testing import RLockServer
server = RLockServer()
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[1] == "fork":
    os.wait()
    server.flush()
print(server.pid, flush=True)
if sys.argv[1] == "killed":
    time.sleep(60)
"""


def started(how: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", STARTS, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def is_gone(pid: int) -> bool:
    try:
        # A process whose parent has ended is a zombie until it is reaped.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_when_its_program_is_killed(module: None, number: signal.Signals) -> None:
    process, pid = started("killed")
    assert not is_gone(pid)
    process.send_signal(number)
    process.wait(10)
    eventually(lambda: is_gone(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["returns", "fork"])
def test_a_server_that_is_not_closed_ends_with_its_program_but_not_with_a_fork(
    module: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, pid = started(how)
    assert process.wait(10) == 0
    assert is_gone(pid)
    assert list(tmp_path.glob("rlock-test-*")) == []


def test_a_server_outlives_the_thread_that_started_it(module: None) -> None:
    servers: list[RLockServer] = []
    thread = threading.Thread(target=lambda: servers.append(RLockServer()))
    thread.start()
    thread.join()
    with servers[0] as server:
        with pytest.raises(subprocess.TimeoutExpired):
            server._process.wait(0.2)
        server.flush()
