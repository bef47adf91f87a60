"""Four ways to a snapshot of a running graph."""

from __future__ import annotations

from collections.abc import Mapping

from unit_tests.snapshots.model import Algorithm, Barrier, Channel, Row, Run


def record_and_forward(run: Run, process: str) -> None:
    """The sending rule, the same for all who send barriers: record, then a barrier on every output before any other row."""
    run.record(process)
    for channel in run.graph.outputs(process):
        run.send(channel, Barrier())


class ChandyLamport(Algorithm):
    """A process records at the first marker; what still comes on the other channels before their marker is recorded too.

    Any graph, cycles included; any processes start it, as long as all others can be reached from them.
    """

    def __init__(self, barriers: Mapping[str, int]) -> None:
        super().__init__(barriers)
        self.recording: set[Channel] = set()

    def begin(self, run: Run, process: str) -> None:
        record_and_forward(run, process)
        self.recording.update(run.graph.inputs(process))

    def on_barrier(self, run: Run, channel: Channel) -> None:
        if channel[1] not in run.cut:
            self.begin(run, channel[1])
        self.recording.discard(channel)  # the first marker's channel is empty, the others hold what came until now

    def on_row(self, run: Run, channel: Channel, row: Row) -> None:
        if channel in self.recording:
            run.snapshot.channels.setdefault(channel, []).append(row)


class Tracking(Algorithm):
    """Flink's AT_LEAST_ONCE: a process records when barriers have come on all its inputs, and goes on reading meanwhile."""

    def __init__(self, barriers: Mapping[str, int]) -> None:
        super().__init__(barriers)
        self.arrived: set[Channel] = set()

    def begin(self, run: Run, process: str) -> None:
        record_and_forward(run, process)

    def on_barrier(self, run: Run, channel: Channel) -> None:
        self.arrived.add(channel)
        if self.arrived.issuperset(run.graph.inputs(channel[1])):
            record_and_forward(run, channel[1])


class Aligned(Tracking):
    """Flink's EXACTLY_ONCE: an input whose barrier has come is held back until the process has recorded."""

    def may_deliver(self, run: Run, channel: Channel) -> bool:
        return channel not in self.arrived or channel[1] in run.cut


class Epoch(Algorithm):
    """Spark's micro-batch: the sources stop at their barriers, everything drains, and all record. No barrier travels."""

    def may_go_on(self, run: Run, process: str) -> bool:
        return not self.is_due(run, process)

    def on_rest(self, run: Run) -> None:
        for process in run.graph.rows:
            if process not in run.cut:
                run.record(process)
