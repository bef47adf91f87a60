"""Writes a checkpoint directory that Spark goes on from: as if its epoch 0 had read up to a barrier and left some state.

Nothing here knows how Spark's state stores look inside. A small query of the same shape as the real one (key groups in,
one blob of state for each) is run once, under the settings of the new query; what it leaves behind is the state of the new
directory, in any number of partitions and with any provider. Then its log entries are given the real positions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.engine.storage import qualified
from lockstep.errors import CheckpointDirectoryError
from lockstep.operators.placement import places
from lockstep.protocol.failpoint import reach
from lockstep.protocol.storage import Storage
from lockstep.savepoint.groups import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKSHOP = "lockstep/restoring"  # in the new directory; removed when all is done
_VERSION = "v1"
_NO_OFFSET = "-"


@dataclass(frozen=True)
class Start:
    """Where the first epoch of the new query begins."""

    positions: Sequence[str | None]
    timestamp_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class NewDirectory:
    """A directory in the making. ``check`` raises when another driver has taken over: looked at before every step."""

    spark: SparkSession
    storage: Storage
    location: str
    workshop: str
    check: Callable[[], None]

    def write(self, start: Start, state: Mapping[int, str]) -> None:
        """``state``: by Spark's number of each stateful operator, where its key groups lie (Parquet)."""
        metadata: dict[str, Any] = {"conf": {}}
        for number, groups in sorted(state.items()):
            made = f"{self.workshop}/operator-{number}"
            _run(self.spark, groups, f"{self.location.rstrip('/')}/{made}")
            metadata = self._metadata(f"{made}/offsets/0")
            self.check()
            self._take_state(f"{made}/state/0", number)
            reach("restore.state.after")
        metadata |= {"batchWatermarkMs": start.watermark_ms, "batchTimestampMs": start.timestamp_ms}
        positions = [_NO_OFFSET if position is None else position for position in start.positions]
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        self._write("offsets/0", "\n".join([_VERSION, json.dumps(metadata), *positions]))
        reach("restore.offsets.after")
        self._write("commits/0", f"{_VERSION}\n{json.dumps({'nextBatchWatermarkMs': start.watermark_ms})}")

    def _write(self, path: str, text: str) -> None:
        self.check()
        self.storage.write(path, text.encode())

    def _metadata(self, path: str) -> dict[str, Any]:
        """Spark's settings for the query, among them the number of state partitions and the provider."""
        data = self.storage.read(path)
        if data is None:
            raise CheckpointDirectoryError(f"{self.storage.describe()}/{path} is missing: the state was not restored.")
        return dict(json.loads(data.decode().splitlines()[1]))

    def _take_state(self, made: str, number: int) -> None:
        """Move what the query has left into its place, under the operator's own number."""
        if number:
            name = f"{made}/_metadata/metadata"
            version, _, text = (self.storage.read(name) or b"").decode().partition("\n")
            described = json.loads(text)
            described["operatorInfo"]["operatorId"] = number
            self.storage.delete(f"{made}/_metadata/.metadata.crc")
            self.storage.write(name, f"{version}\n{json.dumps(described)}".encode())
        jvm: Any = self.spark._jvm
        root = jvm.org.apache.hadoop.fs.Path(qualified(self.spark, self.location))
        files = root.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
        target = jvm.org.apache.hadoop.fs.Path(root, f"state/{number}")
        files.mkdirs(target.getParent())
        if files.exists(target) or not files.rename(jvm.org.apache.hadoop.fs.Path(root, made), target):
            raise CheckpointDirectoryError(f"{self.storage.describe()}/{made} could not be moved to state/{number}.")


def _run(spark: SparkSession, groups: str, location: str) -> None:
    """One epoch that stores every key group, and nothing else."""
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.state import GroupStateTimeout

    def keep(group: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
        for frame in frames:
            for blob in frame["state"]:
                state.update((bytes(blob),))
        return iter(())

    highest = spark.read.schema(SCHEMA).parquet(groups).agg(F.coalesce(F.max("group"), F.lit(0))).collect()[0][0]
    stream: DataFrame = spark.readStream.schema(SCHEMA).parquet(groups)
    stream = stream.select(places(F.col("group"), highest + 1).alias("group"), "state")
    kept = stream.groupBy("group").applyInPandasWithState(
        keep, "nothing int", "state binary", "append", GroupStateTimeout.NoTimeout
    )
    writer = kept.writeStream.format("noop").option("checkpointLocation", location).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    if [one["batchId"] for one in query.recentProgress if one["numInputRows"]] not in ([], [0]):
        raise CheckpointDirectoryError(f"{location}: the state was restored in more than one epoch.")
