"""The prepare record: the handles of all sinks for one attempt of one epoch, in one atomic file.

The record exists before Spark can decide the epoch, and holds all that a later process needs to commit it. Every
attempt has a file name of its own, so no driver can destroy another's record, and a write that seemed to fail and lands
late can't destroy the record of the attempt that was made in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.errors import CorruptRecordError
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.envelope import of_another, remedy_of, seal, unseal_fields
from lockstep.protocol.fields import number_in_name
from lockstep.protocol.storage import Storage
from lockstep.sinks.two_phase import Attempt, Handle, PreparedEpoch

DIRECTORY = "lockstep/prepared"
_KIND = "prepare record"


@dataclass(frozen=True)
class Replaced:
    """Rows of a sink that were staged again because its target had changed."""

    attempt: str
    uid: str
    handle: Handle


@dataclass(frozen=True)
class PrepareRecord:
    """What one attempt of one epoch has prepared."""

    attempt: Attempt
    barrier: Barrier
    prepared_at_ms: int
    handles: Mapping[str, Handle]  # by sink uid
    committed_early: bool = False  # AT_LEAST_ONCE: sinks may be committed before the decision
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by participant: rows, bytes, times
    replaced: tuple[Replaced, ...] = ()  # what was staged again: to abort after the commit

    @property
    def epoch(self) -> int:
        return self.attempt.epoch

    @property
    def attempt_ids(self) -> frozenset[str]:
        """The record's attempt, and those that it replaced."""
        return frozenset({self.attempt.id, *(old.attempt for old in self.replaced)})

    @property
    def origin(self) -> str:
        """The attempt that was prepared in the epoch itself, whatever was staged again since: the one a choice names."""
        return self.replaced[0].attempt if self.replaced else self.attempt.id

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.epoch:012d}.{self.attempt.token}.{self.attempt.id}"

    def prepared(self, uid: str) -> PreparedEpoch | None:
        """The sink's part, or ``None`` when the sink was not in the query then."""
        handle = self.handles.get(uid)
        return None if handle is None else PreparedEpoch(self.attempt, handle, self.prepared_at_ms)

    def with_handle(self, uid: str, handle: Handle, attempt_id: str, token: int) -> PrepareRecord:
        """The record after the driver with this token let the sink stage its rows again."""
        return replace(
            self,
            attempt=replace(self.attempt, id=attempt_id, token=token),
            handles={**self.handles, uid: handle},
            replaced=(*self.replaced, Replaced(self.attempt.id, uid, self.handles[uid])),
        )

    def encode(self) -> bytes:
        return seal(
            _KIND,
            {
                "epoch": self.epoch,
                "attempt": self.attempt.id,
                "lineage": self.attempt.lineage,
                "token": self.attempt.token,
                "barrier": self.barrier.to_json(),
                "prepared_at_ms": self.prepared_at_ms,
                "handles": dict(self.handles),
                "committed_early": self.committed_early,
                "reports": {name: dict(report) for name, report in self.reports.items()},
                "replaced": [[old.attempt, old.uid, old.handle] for old in self.replaced],
            },
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> PrepareRecord:
        fields = unseal_fields(_KIND, data, where)
        replaced = []
        for old in fields.json_list("replaced"):
            if not isinstance(old, list) or list(map(type, old)) != [str, str, dict]:
                raise fields.wrong("replaced", old, "a list of [attempt, uid, handle]")
            replaced.append(Replaced(*old))
        record = cls(
            attempt=Attempt(
                fields.count("epoch"), fields.name("attempt"), fields.name("lineage"), fields.count("token")
            ),
            barrier=Barrier.from_fields(fields.fields("barrier")),
            prepared_at_ms=fields.integer("prepared_at_ms"),
            handles=fields.objects("handles"),
            committed_early=fields.flag("committed_early"),
            reports=fields.objects("reports"),
            replaced=tuple(replaced),
        )
        if not record.handles:  # a query has a sink, and the epoch's rows would be left out of it without a word
            raise fields.wrong("handles", {}, "the handle of at least one sink")
        if record.barrier.epoch != record.epoch:
            raise fields.refusal(f"it is of epoch {record.epoch}, and its barrier of epoch {record.barrier.epoch}.")
        return record


def record_name(name: str) -> tuple[int, int] | None:
    """The epoch and token that a record's file name tells; ``None`` for other files: the temporary ones of a writer."""
    epoch, _, rest = name.partition(".")
    token, _, attempt = rest.partition(".")
    numbers = number_in_name(epoch), number_in_name(token)
    return None if numbers[0] is None or numbers[1] is None or not attempt else (numbers[0], numbers[1])


def read_records(storage: Storage, lineage: str) -> list[PrepareRecord]:
    """All prepare records of the directory, oldest epoch and lowest token first."""
    records = []
    for name in sorted(storage.list(DIRECTORY)):
        if record_name(name) is None:
            continue  # a temporary file of a crashed writer
        path = f"{DIRECTORY}/{name}"
        data = storage.read(path)
        if data is None:
            continue  # retired by its owner between list and read
        where = f"{storage.describe()}/{path}"
        record = PrepareRecord.decode(data, where)
        if record.path != path:
            raise CorruptRecordError(
                f"{where} holds the record of epoch {record.epoch}, attempt {record.attempt.id}. {remedy_of(where)}"
            )
        if record.attempt.lineage != lineage:
            raise of_another(where, record.attempt.lineage, lineage)
        records.append(record)
    return sorted(records, key=lambda record: (record.epoch, record.attempt.token))


def choose(records: Iterable[PrepareRecord], chosen_attempt: str | None = None) -> PrepareRecord | None:
    """The one attempt of an epoch to commit: the one already chosen, else that of the newest driver.

    What was staged again, the last time, stands for the attempt that it replaced. ``None`` when the chosen one is not among
    the records: no other may take its place.
    """
    candidates = [r for r in records if chosen_attempt is None or chosen_attempt in r.attempt_ids]
    return max(candidates, key=lambda record: (record.attempt.token, len(record.replaced)), default=None)
