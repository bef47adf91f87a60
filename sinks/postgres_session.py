"""Talks to PostgreSQL through its JDBC driver in the driver's JVM. The only place that knows py4j and pgjdbc."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockstep.engine.versions import postgresql_package
from lockstep.errors import EnvironmentProblemError, LockstepError
from lockstep.sinks.postgres_address import PostgresAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "org.postgresql.Driver"
_ALIVE_SECONDS = 10
_CLOSE_SECONDS = 5
_LONGEST_MESSAGE = 2000
_DEEPEST_CAUSE = 20

# A commit that the server has not yet written to disk would be lost with it, and the marker's epoch with that.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
# A driver that is paused in the middle of a transaction must not hold its locks for ever.
_IMPATIENT = "SELECT set_config('idle_in_transaction_session_timeout', '60s', false)"


class SqlError(LockstepError):
    """The server, or the way to it, refused. ``state`` is the SQLSTATE; secrets are gone from the message."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


class Transaction:
    """Statements between BEGIN and COMMIT."""

    def __init__(self, connection: Any, address: PostgresAddress) -> None:
        self._connection = connection
        self._address = address

    def execute(self, sql: str, *parameters: str | int) -> int:
        """Run a statement; return how many rows it changed."""
        with redacted_errors(self._address):
            if parameters:
                with contextlib.closing(self._prepared(sql, parameters)) as statement:
                    return int(statement.executeUpdate())
            with contextlib.closing(self._connection.createStatement()) as statement:
                statement.execute(sql)
                return int(statement.getUpdateCount())

    def query(self, sql: str, *parameters: str | int) -> list[tuple[str | None, ...]]:
        """Run a SELECT; every value as PostgreSQL's text."""
        with redacted_errors(self._address), contextlib.closing(self._prepared(sql, parameters)) as statement:
            found = statement.executeQuery()
            width = range(1, found.getMetaData().getColumnCount() + 1)
            rows = []
            while found.next():
                rows.append(tuple(found.getString(n) for n in width))
            return rows

    def _prepared(self, sql: str, parameters: tuple[str | int, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for n, value in enumerate(parameters, 1):
            statement.setLong(n, value) if isinstance(value, int) else statement.setString(n, value)
        return statement


class PostgresSession:
    """One connection, made when it is needed and made anew after any error. Threads take turns."""

    def __init__(self, spark: SparkSession, address: PostgresAddress) -> None:
        self._jvm: Any = spark._jvm
        self._address = address
        self._connection: Any = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commits at the end of the block. After an error all is rolled back; a failed COMMIT may have succeeded."""
        with self._lock, redacted_errors(self._address):
            try:
                yield Transaction(self._connected(), self._address)
                self._connection.commit()
            except BaseException:
                self._disconnect()
                raise

    def close(self) -> None:
        """Never waits for a statement that hangs: what is open then is rolled back by the server."""
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._disconnect()
            finally:
                self._lock.release()
        elif (connection := self._connection) is not None:
            with contextlib.suppress(Exception):
                connection.abort(self._jvm.java.util.concurrent.ForkJoinPool.commonPool())

    def _connected(self) -> Any:
        if self._connection is not None and not self._connection.isValid(_ALIVE_SECONDS):
            self._disconnect()  # the server was restarted while there was nothing to do
        if self._connection is None:
            self._connection = self._connect()
            self._connection.setAutoCommit(False)
            Transaction(self._connection, self._address).query(_DURABLE)
            Transaction(self._connection, self._address).query(_IMPATIENT)
            self._connection.commit()  # a rollback would take the setting back
        return self._connection

    def _connect(self) -> Any:
        driver = self._jvm.org.postgresql.Driver
        if type(driver).__name__ == "JavaPackage":
            raise EnvironmentProblemError(
                f"the PostgreSQL JDBC driver is not on Spark's class path. Add {postgresql_package()} to "
                "spark.jars.packages (or spark-submit --packages) before the session is created."
            )
        properties = self._jvm.java.util.Properties()
        for name, value in self._address.properties.items():
            properties.setProperty(name, value)
        connection = driver().connect(self._address.url, properties)
        if connection is None:
            raise EnvironmentProblemError(f"the PostgreSQL driver does not take the URL of {self._address.place}.")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # rolls back, if the connection still lives
                connection.rollback()
            with contextlib.suppress(Exception):
                connection.close()


@contextlib.contextmanager
def redacted_errors(address: PostgresAddress) -> Iterator[None]:
    """Raises what is an SQL error, at whatever depth, as ``SqlError``; lets other errors pass."""
    try:
        yield
    except Exception as error:
        cause = _sql_cause(error)
        if cause is None:
            raise
        message, state = str(cause.getMessage() or cause).rstrip(" ."), str(cause.getSQLState() or "")
        # Not chained: the original shows more of the connection than anybody should see.
        raise SqlError(address.redacted(message[:_LONGEST_MESSAGE]) + ".", state) from None


def _sql_cause(error: Exception) -> Any:
    """The innermost java.sql.SQLException behind an error of py4j or pyspark: it has the server's own words."""
    throwable = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found = None
    for _ in range(_DEEPEST_CAUSE):
        if throwable is None or not hasattr(throwable, "getCause"):
            break
        if _is_sql(throwable):
            found = throwable
        throwable = throwable.getCause() or (throwable.getNextException() if _is_sql(throwable) else None)
    return found


def _is_sql(throwable: Any) -> bool:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context is not None and bool(is_instance_of(context._gateway, throwable, "java.sql.SQLException"))
