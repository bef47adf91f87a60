"""Exactly-once to a directory of plain files."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import CheckpointDirectoryError, CheckpointError, ConfigurationError, CorruptRecordError
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fields import Fields, parse_json
from lockstep.sinks.disk import sync_directories, sync_tree
from lockstep.sinks.file_reader import (
    NO_GLOBS,
    OWN,
    DataFileName,
    FileDirectory,
    StoredFile,
    check_format,
    hidden,
    highest_marker,
    markers,
)
from lockstep.sinks.handles import ATTEMPT, NEVER_IN_PATHS, handle_fields, metrics_of, staged_by
from lockstep.sinks.opening import refuse_all_but_append, refuse_old_copy
from lockstep.sinks.two_phase import (
    Attempt,
    CommitOutcome,
    CommitStatus,
    Handle,
    PreparedEpoch,
    SinkContext,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
_OBSERVATION_SECONDS = 10.0
_MARKERS_KEPT = 2
_NESTED = ("struct", "array", "map", "variant")
_SUFFIX = re.compile(r"(?:[-.]c[0-9]{3,})?(?P<suffix>(?:\.[A-Za-z0-9_]+)*)$")  # of part-00000-<job>-c000.snappy.parquet


@dataclass(frozen=True)
class _Move:
    """A file of an epoch: where it is staged, where readers will find it, and how large it was when it was staged."""

    staged: str
    final: str
    bytes: int


class FileSink(TwoPhaseCommitSink):
    """Adds epochs to a directory as plain files, on any Hadoop file system; each once, after Spark has decided it.

    Phase 1 writes files with Spark's own writer into a hidden directory beside the others. Phase 2 moves them to where
    readers look, one rename per file, and then creates a marker, by which any later process knows what is committed. A
    crash between two files is mended by the next start: what was moved stays, the rest follows.

    Promised: a plain reader of the directory never sees a row of an undecided epoch, a row twice, or half a file. An
    epoch of several files appears file by file, within moments (after a crash, at the next start). Readers that need
    whole epochs use :func:`~lockstep.sinks.file_reader.read_files`, which shows an epoch when all of it is in place. With
    ``files_per_epoch=1`` and no partitioning an epoch is one file, and all readers see whole epochs.

    A rename is atomic on HDFS and on local disks. On object stores it is a copy, whose target appears when it is
    complete; repeating one does no harm.

    Other writers may add files to the directory, and files of committed epochs (``committed_files``) may be removed or
    compacted, also while the query runs; what is in ``_lockstep`` must be left alone. Epochs without rows leave no file.

    Parameters
    ----------
    path
        The directory. It is created if missing.
    format
        ``parquet``, ``json``, ``csv`` or ``orc``.
    partition_by
        Columns that become directories (``day=2026-01-01``). As with all of Spark's writers, null and the empty string
        are the same there.
    options
        Of Spark's writer for the format: ``{"compression": "zstd"}``, ``{"header": "true"}``.
    files_per_epoch
        Write at most so many files per epoch (with ``partition_by``, per partition), in so many tasks; the batch is computed
        first, as wide as it comes. ``None`` for one file per task of the batch.
    """

    def __init__(
        self,
        path: str,
        format: str = "parquet",
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        files_per_epoch: int | None = None,
    ) -> None:
        self._path = str(path)
        self._format = check_format(format)
        self._partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self._options = dict(options or {})
        self._files_per_epoch = files_per_epoch
        self.reads_whole_batch = files_per_epoch is None  # otherwise few tasks would have to compute all of the batch
        self._observed: dict[str, Observation] = {}  # by attempt, between write and pre_commit
        self._committing = threading.Lock()  # early commits come on the query's thread
        if any(name.lower() == "path" for name in self._options):
            raise ConfigurationError(
                "options={'path': …}: FileSink decides where files go. Give the directory as path=."
            )
        if files_per_epoch is not None and files_per_epoch < 1:
            raise ConfigurationError(f"files_per_epoch={files_per_epoch!r}: use 1 or more, or None for no limit.")

    def describe(self) -> str:
        return f"{self._format} files in {self._path}"

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        from lockstep.engine.storage import local_path, open_storage

        refuse_all_but_append(context, self)
        self._check_columns(context.schema)
        self._context = context
        self._writer = f"{context.lineage}.{context.uid}"
        self._own = f"{OWN}/{self._writer}"
        self._directory = FileDirectory(context.spark, self._path)
        local = local_path(self._directory.location)
        self._local = Path(local) if local is not None else None
        if context.returning and not self._directory.exists(f"{self._own}/birth"):
            raise CheckpointDirectoryError(
                f"{self.describe()}: sink {context.uid!r} has written there before, but {self._own} is gone: the directory "
                "was emptied, moved or replaced. Restore it; or, for a new target, give the sink a uid of its own."
            )
        self._storage = open_storage(context.spark, f"{self._directory.location}/{self._own}")
        self._refuse_other_layout()
        refuse_old_copy(context, self, self._committed())

    def _check_columns(self, schema: StructType) -> None:
        target, chosen = self.describe(), list(self._partition_by)
        if missing := [name for name in chosen if name not in schema.names]:
            raise ConfigurationError(
                f"{target}: partition_by={chosen} names {missing}; the rows have: {', '.join(schema.names)}."
            )
        if len(set(chosen)) < len(chosen):
            raise ConfigurationError(f"{target}: partition_by={chosen} names a column twice.")
        if chosen and len(chosen) == len(schema.names):
            raise ConfigurationError(
                f"{target}: partition_by={chosen} names all columns: nothing is left for the files. Leave one out."
            )
        if concealed := [name for name in chosen if name.startswith((".", "_"))]:
            raise ConfigurationError(
                f"{target}: partition_by={chosen}: readers pass over directories that start with '.' or '_', as those of "
                f"{concealed} would. Rename the columns."
            )
        nested = [field.name for field in schema.fields if field.dataType.typeName() in _NESTED]
        if in_path := [name for name in nested if name in chosen]:
            raise ConfigurationError(f"{target}: partition_by={chosen}: {in_path} are not plain values.")
        if self._format == "csv" and nested:
            raise ConfigurationError(
                f"{target}: csv can't hold the nested columns {nested}. Write them as text with to_json, or use another "
                "format=."
            )

    def _refuse_other_layout(self) -> None:
        """Leaves the proof that this sink was here, and how it wrote: files of two kinds would be unreadable."""
        layout = {"format": self._format, "partition_by": list(self._partition_by)}
        if self._storage.create("birth", _encoded(layout)):
            return
        before = _decoded(self._storage.read("birth"))
        if not layout.keys() <= before.keys():
            where = f"{self._directory.location}/{self._own}/birth"
            raise CorruptRecordError(
                f"{self.describe()}: {where} is damaged, and says nothing of how sink {self._context.uid!r} began there. "
                f"It was left as it is. Restore it from a backup, or write this into it: {_encoded(layout).decode()}"
            )
        if any(before.get(name) != value for name, value in layout.items()):
            raise ConfigurationError(
                f"{self.describe()}: sink {self._context.uid!r} began there with format={before.get('format')!r} and "
                f"partition_by={before.get('partition_by')}, and would go on with format={self._format!r} and partition_by="
                f"{list(self._partition_by)}: the directory could not be read as one. Use another path= and uid."
            )

    # --- phase 1 ----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> Handle:
        return {"attempt": attempt.id}

    def write(self, handle: Handle, batch: DataFrame) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        rows = batch.coalesce(self._files_per_epoch) if self._files_per_epoch is not None else batch
        rows = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        writer = rows.write.format(self._format).options(**self._options).mode("error")
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(f"{self._directory.location}/{self._staged(handle['attempt'])}")
        self._observed[handle["attempt"]] = observation

    def pre_commit(self, handle: Handle) -> Handle:
        attempt_id = handle["attempt"]
        staged = self._staged(attempt_id)
        files = [file for file in self._directory.data_files(staged) if file.bytes > 0]
        rows = self._rows(self._observed.pop(attempt_id), staged, files)
        if rows and not files:
            raise CheckpointError(f"{self.describe()}: {rows} rows were written to {staged}, but no files are there.")
        if not rows:
            files = []  # of no rows, with nothing but a schema or a header
        if self._local is not None:
            sync_tree(self._local, staged)
        return {
            "attempt": attempt_id,
            "files": [
                {
                    "staged": file.path.removeprefix(f"{staged}/"),
                    "final": self._final(file.path.removeprefix(f"{staged}/"), number, attempt_id),
                    "bytes": file.bytes,
                }
                for number, file in enumerate(files)
            ],
            "metrics": {"rows": rows, "bytes": sum(file.bytes for file in files), "files": len(files)},
        }

    def _rows(self, observation: Observation, staged: str, files: list[StoredFile]) -> int:
        """How many rows were staged: as observed by Spark; if it saw none or does not tell, counted in the files."""
        rows = _observed_rows(observation)
        if rows or not files:
            return rows or 0
        reader = self._context.spark.read.format(self._format).options(**self._options).option(NO_GLOBS, "false")
        return reader.schema(self._context.schema).load(f"{self._directory.location}/{staged}").count()

    def _final(self, path: str, number: int, attempt_id: str) -> str:
        directory, slash, name = path.rpartition("/")
        match = _SUFFIX.search(name)
        suffix = match["suffix"] if match else ""
        return f"{directory}{slash}part-{number:05d}.{self._writer}.{attempt_id}{suffix}"

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        """Removes what is staged, and nothing that is visible."""
        self._observed.pop(attempt.id, None)
        self._storage.delete(
            f"staged/{staged_by(handle_fields(handle, self.describe(), attempt.epoch), attempt.epoch)}"
        )

    # --- phase 2 ----------------------------------------------------------------------------------------------------

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        """Move the files to where readers look.

        1. Look at the highest marker: an epoch up to it is in place.
        2. Look at the token, and whether every file is either here or there: otherwise nothing is moved.
        3. Move file by file; those that an earlier call has moved are passed over.
        4. Make the moves durable, and look at the token again.
        5. Create the marker. From here on the epoch is committed.
        6. Remove older markers and what is left of the staged files.
        """
        files = self._checked_files(prepared)
        metrics = metrics_of(self._fields(prepared), len(files))
        with self._committing:
            outcome = self._commit(prepared, files, metrics)
            if outcome.committed:
                self._tidy_up(prepared)  # 6.
        return outcome

    def _commit(self, prepared: PreparedEpoch, files: Sequence[_Move], metrics: Mapping[str, int]) -> CommitOutcome:
        if (committed := self._committed()) >= prepared.epoch:  # 1.
            return self._already_done(committed, prepared.epoch)
        if not files:
            return CommitOutcome(CommitStatus.DONE, details=metrics)  # leaves no trace, so it can be done again
        self._context.token()  # 2.
        todo = [file for file in files if not self._directory.exists(file.final)]
        sizes = {file.staged: self._directory.size(file.staged) for file in todo}
        if wrong := [file for file in todo if sizes[file.staged] != file.bytes]:
            if (committed := self._committed()) >= prepared.epoch:  # another driver was faster
                return self._already_done(committed, prepared.epoch)
            first, size = wrong[0], sizes[wrong[0].staged]
            what = "is gone" if size is None else f"has {size} bytes and was staged with {first.bytes}"
            return CommitOutcome.failed(
                f"epoch {prepared.epoch}: {len(wrong)} staged files of {self.describe()} are gone or were changed (first: "
                f"{first.staged} {what}). Restore them from versioned storage or a backup, and start again."
            )
        for file in todo:  # 3.
            if not self._directory.move(file.staged, file.final) and not self._directory.exists(file.final):
                raise OSError(f"epoch {prepared.epoch}: the file system refused to move {file.staged} to {file.final}")
            reach("files.move.after")
        if self._local is not None:  # 4.
            sync_directories(self._local, [file.final for file in files])
        reach("files.marker.before")
        token = self._context.token()
        marker = {"epoch": prepared.epoch, "attempt": prepared.attempt.id, "token": token}
        if not self._storage.create(_marker(prepared.epoch), _encoded(marker)):  # 5.
            return self._already_done(prepared.epoch, prepared.epoch)
        return CommitOutcome(CommitStatus.DONE, details=metrics)

    def _tidy_up(self, prepared: PreparedEpoch) -> None:
        try:
            for name in markers(self._storage.list("committed"))[:-_MARKERS_KEPT]:
                self._storage.delete(f"committed/{name}")
            self._storage.delete(f"staged/{staged_by(self._fields(prepared), prepared.epoch)}")
        except Exception as error:  # invisible files are left behind: a cost, not a wrong result
            _log.warning("epoch %d: %s could not tidy up: %s", prepared.epoch, self.describe(), error)

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        for name in self._storage.list("staged"):
            if ATTEMPT.fullmatch(name) and is_stray(name):
                self._storage.delete(f"staged/{name}")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _committed(self) -> int:
        return highest_marker(self._storage.list("committed"))

    def _already_done(self, committed: int, epoch: int) -> CommitOutcome:
        marker = _decoded(self._storage.read(_marker(committed))) if committed == epoch else {}
        attempt_id = marker.get("attempt")
        return CommitOutcome.already_done(attempt_id if isinstance(attempt_id, str) else None)

    def _staged(self, attempt_id: str) -> str:
        return f"{self._own}/staged/{attempt_id}"

    def _fields(self, prepared: PreparedEpoch) -> Fields:
        return handle_fields(prepared.handle, self.describe(), prepared.epoch)

    def _checked_files(self, prepared: PreparedEpoch) -> list[_Move]:
        """Where each file is and where it goes, in the target. A handle that names anything but own files is refused."""
        fields = self._fields(prepared)
        attempt_id = staged_by(fields, prepared.epoch)
        own = DataFileName(self._writer, attempt_id, prepared.epoch)
        moves = []
        for file in fields.list_of_fields("files"):
            staged, final = file.text("staged"), file.text("final")
            if not (_is_inside(staged) and _is_inside(final) and DataFileName.parse(final) == own):
                raise fields.refusal(
                    f"it would move {staged!r} to {final!r}, and only files of the epoch may be moved, inside of the "
                    "directory."
                )
            moves.append(_Move(f"{self._staged(attempt_id)}/{staged}", final, file.count("bytes")))
        return moves


def _is_inside(path: str) -> bool:
    """Whether a path from a handle is relative, stays inside of the directory, and is one that readers look at."""
    return not NEVER_IN_PATHS.search(path) and all(piece and not hidden(piece) for piece in path.split("/"))


def _marker(epoch: int) -> str:
    return f"committed/{epoch:012d}"


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _decoded(data: bytes | None) -> dict[str, Any]:
    """The fields of a marker or of the birth file; none when somebody has tampered with it."""
    try:
        fields = parse_json(data or b"{}")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _observed_rows(observation: Observation) -> int | None:
    """What Spark counted while it wrote. It tells through its listener bus, which drops events under great load."""
    seen: list[int] = []

    def wait() -> None:
        with contextlib.suppress(Exception):
            seen.append(int(observation.get["rows"]))

    thread = threading.Thread(target=wait, name="lockstep-observed-rows", daemon=True)
    thread.start()
    thread.join(_OBSERVATION_SECONDS)
    return seen[0] if seen else None
