"""A real PostgreSQL server from Debian's packages, on a free loopback port, gone with the test run."""

from __future__ import annotations

import csv
import io
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from lockstep.broker.embedded import free_ports
from lockstep.broker.guarded import GuardedProcess
from lockstep.errors import EnvironmentProblemError

_PACKAGES = Path("/usr/lib/postgresql")
_ACCOUNT = "postgres"  # the server refuses to run as root
_START_SECONDS = 60
_POLL_SECONDS = 0.05
_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
    "listen_addresses": "127.0.0.1",
}


class PostgresServer:
    """One server with one database, ``user`` and ``password``. Use it as a context manager.

    ``query`` and ``execute`` go through psql: they know nothing of the code under test.
    """

    host = "127.0.0.1"
    user = "tester"
    database = "shop"

    def __init__(self) -> None:
        self._binaries = _installed()
        self._directory = Path(tempfile.mkdtemp(prefix="lockstep-postgres-"))
        self._server: GuardedProcess | None = None
        self.password = secrets.token_hex(12)
        self.port = free_ports(1)[0]

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://{self.host}:{self.port}/{self.database}"

    def __enter__(self) -> PostgresServer:
        try:
            self._initialize()
            self.start_server()
            self._psql(f'CREATE DATABASE "{self.database}"', database="postgres")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_server()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start_server(self) -> None:
        """Start it where it was stopped, on the same port; returns when it answers."""
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        place = ["-D", str(self._data), "-p", str(self.port), "-k", str(self._directory)]
        command = [*_as_account(), str(self._binaries / "postgres"), *place, *settings]
        self._server = GuardedProcess([command], log=self._log, remove=self._directory, grace=5)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._server.ended or time.monotonic() > deadline:
                raise EnvironmentProblemError(f"PostgreSQL did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(_POLL_SECONDS)

    def stop_server(self) -> None:
        """Stop it as a failure would: connections are cut, open transactions are lost, committed ones are kept."""
        if self._server is None:
            return
        server, self._server = self._server, None
        if (pid := server.pid) is not None:
            os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + _START_SECONDS
        while not server.ended and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        server.release(keep=True)

    def query(self, sql: str) -> list[tuple[str, ...]]:
        """Rows of a SELECT, as text; NULL is the empty string."""
        return [tuple(row) for row in csv.reader(io.StringIO(self._psql(sql)))]

    def execute(self, sql: str) -> None:
        self._psql(sql)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _initialize(self) -> None:
        secret = self._directory / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            for path in (self._directory, secret):
                shutil.chown(path, _ACCOUNT, _ACCOUNT)
        login = ["--username", self.user, "--auth", "scram-sha-256", "--pwfile", str(secret)]
        command = [str(self._binaries / "initdb"), "-D", str(self._data), *login]
        encoding = ["--encoding", "UTF8", "--locale", "C", "--no-sync"]
        done = subprocess.run(
            [*_as_account(), *command, *encoding], cwd=self._directory, capture_output=True, text=True
        )
        secret.unlink()
        if done.returncode != 0:
            raise EnvironmentProblemError(f"initdb failed: {done.stderr}")

    def _answers(self) -> bool:
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(ready).returncode == 0

    def _psql(self, sql: str, database: str | None = None) -> str:
        command = [str(self._binaries / "psql"), "-X", "-q", "--csv", "-t", "-v", "ON_ERROR_STOP=1"]
        place = ["-h", self.host, "-p", str(self.port), "-U", self.user, "-d", database or self.database]
        environment = {**os.environ, "PGPASSWORD": self.password, "PGTZ": "UTC"}
        done = subprocess.run([*command, *place, "-c", sql], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return done.stdout


def _as_account() -> list[str]:
    """A prefix that gives up root, and becomes the command itself: signals reach the server."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_ACCOUNT}", f"--regid={_ACCOUNT}", "--init-groups", "--"]


def _installed() -> Path:
    newest = sorted(_PACKAGES.glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if not newest:
        raise EnvironmentProblemError(f"no PostgreSQL server in {_PACKAGES}: docker/postgres.sh installs one")
    return newest[-1].parent
