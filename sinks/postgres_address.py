"""Where a PostgreSQL database is and how to log in: the JDBC URL taken apart, its secrets kept out of sight."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from lockstep.errors import ConfigurationError

_PREFIX = "jdbc:postgresql:"
_DEFAULT_PORT = "5432"
_OURS = ("url", "dbtable", "query", "driver")  # of Spark's JDBC options
_SECRET = re.compile(r"(?i)user|pass|secret|token|key|credential")
_DEFAULTS = {
    "ApplicationName": "lockstep",
    "batchsize": "10000",
    "reWriteBatchedInserts": "true",
    "stringtype": "unspecified",  # text goes into uuid, jsonb and enum columns
    "tcpKeepAlive": "true",
}


@dataclass(frozen=True)
class PostgresAddress:
    """A database, as both the driver process and Spark's tasks reach it."""

    url: str  # without a query part: everything that was in it is in ``properties``
    place: str  # host:port/database
    properties: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(
        cls, url: str, user: str | None, password: str | None, options: Mapping[str, str] | None
    ) -> PostgresAddress:
        """Arguments win over ``options``, those over the URL's query, and that over our own settings."""
        if not url.startswith(_PREFIX):
            scheme = re.match(r"(?:jdbc:)?\w*", url)
            raise ConfigurationError(
                f"JdbcSink(url=...) starts with {scheme.group() if scheme else ''!r}; only {_PREFIX} is supported, for "
                "example jdbc:postgresql://host:5432/database."
            )
        options = {name: str(value) for name, value in (options or {}).items()}
        if taken := sorted(name for name in options if name.lower() in _OURS):
            raise ConfigurationError(
                f"JdbcSink(options=...) must not hold {', '.join(taken)}: the sink sets them itself."
            )
        base, _, query = url.partition("?")
        in_url = dict(parse_qsl(query, keep_blank_values=True))
        login = {name: value for name, value in (("user", user), ("password", password)) if value is not None}
        given = {**in_url, **options, **login}
        ours = {name: value for name, value in _DEFAULTS.items() if name.lower() not in {n.lower() for n in given}}
        secrets = {value for name, value in given.items() if name in in_url or _SECRET.search(name)}
        secrets |= {pair.partition("=")[2] for pair in query.split("&")}  # as it was written, with its %40
        harmless = ("true", "false", "require", "disable", "prefer")
        return cls(
            url=base,
            place=_place(base),
            properties={**ours, **given},
            secrets=tuple(sorted((s for s in secrets if s and s.lower() not in harmless), key=len, reverse=True)),
        )

    @property
    def database(self) -> str:
        return self.place.partition("/")[2]

    @property
    def default_schema(self) -> str:
        """Where a table is whose name has no schema: pgjdbc's ``currentSchema``, or ``public``."""
        first = self.properties.get("currentSchema", "").split(",")[0].strip().strip('"')
        return first or "public"

    def redacted(self, text: str) -> str:
        """``text`` without user, password and whatever was in the URL's query."""
        for secret in self.secrets:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)  # a user "a" must not blacken every a
        return text


def _place(base: str) -> str:
    rest = base[len(_PREFIX) :]
    authority, _, database = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.lstrip("/"))
    hosts = [host.rpartition("@")[2] for host in (authority or "localhost").split(",")]
    named = [host if re.search(r":\d+$", host) else f"{host}:{_DEFAULT_PORT}" for host in hosts]
    return f"{','.join(named)}/{database}"
