"""A server with the rlock module for tests, and pytest fixtures that use it.

pytest_plugins = ["rlock_redis.testing"]  # in the conftest.py at the root of the tests

def test_orders(rlock_server):
    locks = RLockClient(redis.Redis.from_url(rlock_server.url))

The module is the file that ``RLOCK_MODULE`` names, else ``/usr/lib/redis/modules/librlock.so``. The server is the
program that ``RLOCK_SERVER`` names, else ``redis-server``, else ``valkey-server``. An empty variable counts as unset.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["RLockServer", "rlock_server", "rlock_session_server"]

INSTALLED_MODULE = "/usr/lib/redis/modules/librlock.so"
_START_WITHIN = 30.0
_PORTS_TRIED = 10

# The kernel keeps this setting (PR_SET_PDEATHSIG) when the process becomes the server. A `preexec_fn` of subprocess
# could deadlock in a program with threads.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):  # Else the parent ended before the call.
    os.execv(sys.argv[2], sys.argv[2:])
"""


def _ending_with_parent(command: list[str]) -> list[str]:
    """On Linux, a command whose process the kernel kills when this process ends, even by SIGKILL."""
    # The kernel sends the signal when the thread ends that started the process, so only the main thread can ask for it.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread() or not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command]


def _module() -> str:
    path = os.environ.get("RLOCK_MODULE") or None
    if path is None and not Path(INSTALLED_MODULE).is_file():
        raise RuntimeError(
            f"the rlock module is missing: RLOCK_MODULE is not set and {INSTALLED_MODULE} does not exist; "
            "install the module, or set RLOCK_MODULE to the path of librlock.so"
        )
    if path is not None and not Path(path).is_file():
        raise RuntimeError(f"RLOCK_MODULE is {path!r}, which is not a file; expected the path of librlock.so")
    return str(Path(path or INSTALLED_MODULE).resolve())


def _program() -> str:
    name = os.environ.get("RLOCK_SERVER")
    program = shutil.which(name) if name else shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None or not Path(program).is_file():
        received = f"RLOCK_SERVER is {name!r}" if name else "found neither redis-server nor valkey-server in PATH"
        raise RuntimeError(f"the server is missing: {received}; expected a program of Redis 7.0 or newer, or Valkey")
    return program


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


class RLockServer:
    """A server with the module on a free port of 127.0.0.1, without persistence, in a temporary folder.

    :param options: further options of the server, such as ``"--maxmemory", "100mb"``.
    :raises RuntimeError: the module or the server is missing, or the server did not start.
    """

    host = "127.0.0.1"

    def __init__(self, *options: str) -> None:
        command = [_program(), "--bind", self.host, "--save", "", "--loadmodule", _module(), *options]
        self._folder = Path(tempfile.mkdtemp(prefix="rlock-test-"))
        self._creator = os.getpid()
        atexit.register(self._at_exit)
        try:
            for _ in range(_PORTS_TRIED):
                #: The port, new for each server.
                self.port = _free_port()
                # A process of another program may take the port before the server does.
                if self._starts([*command, "--port", str(self.port), "--dir", str(self._folder)]):
                    return
            raise RuntimeError(f"{command[0]} found each of {_PORTS_TRIED} free ports in use")
        except BaseException:
            self.close()
            raise

    def _starts(self, command: list[str]) -> bool:
        log = self._folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                _ending_with_parent(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        end = time.monotonic() + _START_WITHIN
        while not self._answers():
            ended = self._process.poll() is not None
            if ended and _in_use(self.port):
                return False
            if ended or time.monotonic() > end:
                what = "ended" if ended else f"was not ready within {_START_WITHIN:.0f} s"
                lines = log.read_text(errors="replace").splitlines()
                raise RuntimeError(f"{command[0]} {what}; its log ends with:\n" + "\n".join(lines[-10:]))
            time.sleep(0.005)
        return True

    def _answers(self) -> bool:
        """Whether the server is ready. Another process on its port does not count."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                reply = connection.makefile("rb").read()
        except OSError:
            return False
        # A password, or an ACL, hides the process id.
        ready = reply.startswith(b"+PONG\r\n") and b"\r\nprocess_id:%d\r\n" % self.pid in reply
        return ready or (reply.startswith((b"-NOAUTH", b"-NOPERM")) and self._process.poll() is None)

    @property
    def url(self) -> str:
        """``redis://127.0.0.1:<port>``."""
        return f"redis://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def flush(self) -> None:
        """Deletes all keys, and with them all holds.

        :raises RuntimeError: the server refused, for instance because the options set a password.
        """
        with socket.create_connection((self.host, self.port), timeout=10) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            reply = connection.makefile("rb").readline().decode().strip()
        if reply != "+OK":
            raise RuntimeError(f"FLUSHALL was refused: {reply.removeprefix('-') or 'no reply'}")

    def _at_exit(self) -> None:
        if os.getpid() == self._creator:  # A fork of the process has the callback, too.
            self.close()

    def close(self) -> None:
        """Kills the server, and deletes its folder. The end of the process does so, too."""
        atexit.unregister(self._at_exit)
        if process := getattr(self, "_process", None):
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RLockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def rlock_session_server() -> Iterator[RLockServer]:
    """One server for the whole session, for settings that are read once. No fixture empties it."""
    with RLockServer() as server:
        yield server


@pytest.fixture
def rlock_server(rlock_session_server: RLockServer) -> RLockServer:
    """The server of the session, without keys at the beginning of each test."""
    rlock_session_server.flush()
    return rlock_session_server
