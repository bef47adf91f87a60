"""Makes a checkpoint directory of a savepoint, without the query's code: the query then starts on it as on its own."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from lockstep.engine.state_backend import effective_backend, settings
from lockstep.engine.storage import open_storage, qualified
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.protocol.lineage import PLACED, Lineage, read_lineage
from lockstep.protocol.savepoint import Savepoint
from lockstep.savepoint.origin import open_origin
from lockstep.savepoint.restore import NewQuery, RestoreRequest, install, refuse_used
from lockstep.savepoint.source_positions import unchanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.config import StateBackend

_PARTITIONS = "spark.sql.shuffle.partitions"


def restore_directory(
    spark: SparkSession,
    path: str,
    directory: str,
    *,
    partitions: int | None = None,
    backend: StateBackend | None = None,
) -> Savepoint:
    """Restore the savepoint at ``path`` into ``directory``, which must be new, as it is: same operators, same sources.

    The number of state partitions and the state store are those of the session unless given; the query keeps them.
    """
    storage = open_storage(spark, directory)
    if read_lineage(storage) is not None:
        raise CheckpointDirectoryError(f"{storage.describe()} has a query already. Give a new directory.")
    refuse_used(storage)
    origin = open_origin(spark, path)
    saved = origin.record
    places = sorted(int(operator.description["position"]) for operator in saved.operators.values())
    if not saved.sources or places != list(range(len(places))):
        raise ConfigurationError(
            f"{path} was made by SavepointWriter, and does not know its query's sources and operators as a whole. Start the "
            "query with .option('restoreFrom', ...) instead."
        )
    kept_by = effective_backend(spark, backend)
    lineage = Lineage(
        id=str(uuid.uuid4()),
        created_ms=time.time_ns() // 1_000_000,
        sources=saved.sources,
        query_name=saved.query_name,
        operators={
            uid: {**operator.description, "backend": kept_by, PLACED: True} for uid, operator in saved.operators.items()
        },
    )
    with settings(spark, {} if partitions is None else {_PARTITIONS: str(partitions)}):
        query = NewQuery(spark, storage, qualified(spark, directory), lineage, (), backend)
        if not install(query, origin, unchanged(saved), RestoreRequest(path)):
            raise CheckpointDirectoryError(f"{storage.describe()} was taken by another query meanwhile.")
    return saved
