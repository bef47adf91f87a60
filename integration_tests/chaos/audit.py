"""What must hold when a segment has ended: everything that came in is in the table and the topic once, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
from deltalake import DeltaTable

from integration_tests.chaos.site import PARTITIONS, Site
from integration_tests.chaos.watchers import Seen, admin_client, check_counts, group_offsets, read_table
from integration_tests.targets import read_records

Row = tuple[int, int]


def audit(site: Site, seen: Seen, produced: int) -> dict[str, int]:
    """Notes what is wrong in ``seen``. Returns what was left behind before the clean-up."""
    sent = [
        (record.partition, record.offset, int(record.value))
        for record in read_records(site.cluster.bootstrap_servers, site.topic)
    ]
    assert sorted(id for _, _, id in sent) == list(range(produced)), (
        "the load itself must be without loss or repetition"
    )
    expected = {(partition, offset) for partition, offset, _ in sent}
    table = read_table(site.table)
    own = table.filter(pc.greater_equal(table["partition"], 0))
    _compare(seen, "the table", zip(own["partition"].to_pylist(), own["offset"].to_pylist(), strict=True), expected)
    records = [json.loads(record.value) for record in read_records(site.cluster.bootstrap_servers, site.out)]
    _compare(seen, "the topic", ((one["partition"], one["offset"]) for one in records), expected)
    for problem in check_counts(own):
        seen.broken("state", 1, f"in the table: {problem}")
    counts = {(one["partition"], one["offset"]): one["count"] for one in records}
    in_table = zip(own["partition"].to_pylist(), own["offset"].to_pylist(), own["count"].to_pylist(), strict=True)
    differing = [(p, o) for p, o, count in in_table if counts.get((p, o)) != count]
    if differing:
        seen.broken("state", len(differing), f"table and topic tell different counts of rows {differing[:5]}")
    _compare_group(site, seen, sent)
    return _left_behind(site, seen)


def _compare(seen: Seen, where: str, rows: Any, expected: set[Row]) -> None:
    there = Counter(rows)
    lost = sorted(expected - there.keys())
    twice = sorted(row for row, count in there.items() if count > 1)
    made_up = sorted(there.keys() - expected)
    if lost:
        seen.broken("lost", len(lost), f"{where}, at the end: {lost[:5]}")
    if twice:
        seen.broken("duplicated", len(twice), f"{where}, at the end: {twice[:5]}")
    if made_up:
        seen.broken("duplicated", len(made_up), f"{where} has rows that nobody sent: {made_up[:5]}")


def _compare_group(site: Site, seen: Seen, sent: list[tuple[int, int, int]]) -> None:
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for partition, offset, _ in sent:
        ends[partition] = max(ends[partition], offset + 1)
    with closing(admin_client(site)) as admin:
        offsets = group_offsets(admin, site)
    if offsets != ends:
        seen.broken("ahead", 1, f"after a clean stop the group is at {offsets}, the topic at {ends}")


def _left_behind(site: Site, seen: Seen) -> dict[str, int]:
    """Files that nobody needs. Lockstep removes its own; of the table's, what killed writers left is VACUUM's to remove."""
    lockstep = site.checkpoint / "lockstep"
    records = [file for file in (lockstep / "prepared").glob("*") if file.name[0].isdigit()]
    staged = [file for file in lockstep.glob("staging/**/*") if file.is_file()]
    if records or staged:
        names = [str(file.relative_to(lockstep)) for file in (*records, *staged)]
        seen.broken("orphan", len(names), f"left in the checkpoint directory after a clean stop: {names[:5]}")
    before = unreferenced(site.table)
    DeltaTable(str(site.table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    if after := unreferenced(site.table):
        seen.broken("orphan", len(after), f"left in the table after VACUUM: {sorted(after)[:5]}")
    return {"files_for_vacuum": len(before)}


def unreferenced(table: Path) -> set[str]:
    """Data files that no version of the table names, from the raw log."""
    named = set()
    for version in sorted((table / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                if kind in action:
                    named.add(unquote(action[kind]["path"]))
    there = {str(file.relative_to(table)) for file in table.rglob("*.parquet") if "_delta_log" not in file.parts}
    return there - named
