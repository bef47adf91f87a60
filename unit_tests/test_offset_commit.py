"""Offset commits as FlinkKafkaConsumer makes them: no Spark, no Kafka, no clock on the wall."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.barrier import Barrier, TopicPartition
from lockstep.sources.offset_commit import GroupSource, OffsetCommitMode, OffsetCommitter

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ON_CHECKPOINTS, PERIODIC, DISABLED = OffsetCommitMode


class HandClock:
    """Moves when told to; ``sleep`` moves it too."""

    def __init__(self) -> None:
        self.now = 1000.0

    def epoch_millis(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Broker:
    """Takes commits, or refuses them while ``down``."""

    def __init__(self) -> None:
        self.down = False
        self.sent: list[dict[TopicPartition, int]] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.refused = 0
        self.closed = 0

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.down:
            self.refused += 1
            raise OSError("no broker")
        self.sent.append(dict(offsets))
        self.offsets.update(offsets)

    def close(self) -> None:
        self.closed += 1


class Group:
    """A committer with one group, and what is around it."""

    def __init__(self, mode: OffsetCommitMode = ON_CHECKPOINTS, max_pending: int = 100) -> None:
        self.clock = HandClock()
        self.broker = Broker()
        source = GroupSource("group 'g'", (0,), self.broker.commit, mode, close=self.broker.close)
        self.committer = OffsetCommitter([source], self.clock, max_pending, self.clock.sleep)

    def snapshot(self, epoch: int, *offsets: int) -> None:
        self.committer.snapshot(barrier(epoch, offsets))

    def complete(self, epoch: int, *offsets: int) -> None:
        self.snapshot(epoch, *offsets)
        self.committer.checkpoint_complete(epoch)

    def tick(self, after: float) -> None:
        self.clock.now += after
        self.committer.tick()

    def count(self, name: str) -> int:
        return self.committer.metrics()[name]


def barrier(epoch: int, *sources: tuple[int, ...]) -> Barrier:
    positions = (json.dumps({"orders": {str(i): o for i, o in enumerate(offsets)}}) for offsets in sources)
    return Barrier(epoch, 0, 0, tuple(positions))


def test_positions_are_committed_when_their_checkpoint_completes_and_not_before() -> None:
    group = Group()
    group.snapshot(0, 5, 6)
    assert group.broker.sent == []
    group.committer.checkpoint_complete(0)
    assert group.broker.sent == [{P0: 5, P1: 6}]
    assert group.count("commits_succeeded") == 1


def test_completion_commits_its_own_epoch_though_newer_snapshots_are_pending() -> None:
    group = Group()
    group.snapshot(0, 5)
    group.snapshot(1, 9)
    group.committer.checkpoint_complete(0)
    assert group.broker.offsets == {P0: 5}


def test_completion_stands_for_all_epochs_before_it() -> None:
    group = Group()
    for epoch in range(4):
        group.snapshot(epoch, epoch * 10)
    group.committer.checkpoint_complete(2)
    assert group.broker.sent == [{P0: 20}]
    assert group.count("pending_snapshots") == 1


def test_late_older_completion_never_moves_the_group_back() -> None:
    group = Group()
    for epoch in range(3):
        group.snapshot(epoch, epoch * 10)
    group.committer.checkpoint_complete(2)
    group.committer.checkpoint_complete(1)
    group.tick(10)
    assert group.broker.sent == [{P0: 20}]


def test_unknown_checkpoint_is_logged_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    group.snapshot(0, 5)
    with caplog.at_level(logging.WARNING):
        group.committer.checkpoint_complete(7)
    assert "epoch 7" in caplog.text
    assert group.broker.sent == []
    group.committer.checkpoint_complete(0)
    assert group.broker.offsets == {P0: 5}


def test_pending_map_is_bounded_and_drops_the_oldest() -> None:
    group = Group(max_pending=3)
    for epoch in range(5):
        group.snapshot(epoch, epoch)
    assert group.count("pending_snapshots") == 3
    group.committer.checkpoint_complete(1)
    assert group.broker.sent == []
    group.committer.checkpoint_complete(3)
    assert group.broker.offsets == {P0: 3}


def test_repeated_epoch_replaces_its_positions() -> None:
    group = Group()
    group.snapshot(0, 5)
    group.complete(0, 5, 1)
    assert group.broker.offsets == {P0: 5, P1: 1}


def test_positions_already_committed_are_not_sent_again() -> None:
    group = Group()
    group.complete(0, 5, 6)
    group.complete(1, 5, 7)
    group.complete(2, 5, 7)
    group.tick(10)
    assert group.broker.sent == [{P0: 5, P1: 6}, {P1: 7}]
    assert group.count("commits_succeeded") == 2


def test_quiet_groups_offsets_are_renewed_hourly_so_that_brokers_do_not_forget_them() -> None:
    group = Group()
    group.complete(0, 5, 6)
    group.tick(3599)
    assert len(group.broker.sent) == 1
    group.tick(1)
    assert group.broker.sent[1:] == [{P0: 5, P1: 6}]
    group.tick(1)
    assert len(group.broker.sent) == 2


def test_failed_commit_is_a_warning_and_a_count_and_never_an_error(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    group.broker.down = True
    with caplog.at_level(logging.WARNING):
        group.complete(3, 5)
    assert group.count("commits_failed") == 1
    assert group.count("commits_waiting") == 1
    assert "epoch 3" in caplog.text
    assert "group 'g'" in caplog.text
    assert "no broker" in caplog.text


def test_failed_commit_is_tried_again_when_idle_with_growing_pauses() -> None:
    group = Group()
    group.broker.down = True
    group.complete(0, 5)
    tries = []
    for second in range(1, 130):
        before = group.broker.refused
        group.tick(1)
        if group.broker.refused > before:
            tries.append(second)
    assert tries == [1, 3, 7, 15, 31, 63, 123]
    group.broker.down = False
    group.tick(60)
    assert group.broker.offsets == {P0: 5}
    assert group.count("commits_waiting") == 0


def test_failed_commit_is_replaced_by_newer_positions_and_counted() -> None:
    group = Group()
    group.broker.down = True
    group.complete(0, 5)
    group.complete(1, 8)
    group.broker.down = False
    group.tick(1)
    assert group.broker.sent == [{P0: 8}]
    assert group.count("commits_superseded") == 1


def test_backoff_ends_with_the_first_success() -> None:
    group = Group()
    group.broker.down = True
    group.complete(0, 5)
    group.tick(1)
    group.broker.down = False
    group.tick(2)
    group.complete(1, 6)
    assert group.broker.offsets == {P0: 6}


def test_snapshot_and_newer_completion_do_not_wait_for_a_commit_in_flight_which_they_replace() -> None:
    clock, entered, leave, sent = HandClock(), threading.Event(), threading.Event(), []

    def slow(offsets: Mapping[TopicPartition, int]) -> None:
        sent.append(dict(offsets))
        if len(sent) == 1:
            entered.set()
            assert leave.wait(30)

    committer = OffsetCommitter([GroupSource("g", (0,), slow)], clock)
    committer.snapshot(barrier(0, (5,)))
    sender = threading.Thread(target=committer.checkpoint_complete, args=(0,))
    sender.start()
    assert entered.wait(30)
    for epoch in (1, 2):  # on this thread, while the commit of epoch 0 hangs
        committer.snapshot(barrier(epoch, (5 + epoch,)))
        committer.checkpoint_complete(epoch)
    leave.set()
    sender.join(30)
    assert sent == [{P0: 5}, {P0: 7}]
    assert committer.metrics()["commits_superseded"] == 1
    assert committer.metrics()["commits_waiting"] == 0


def test_periodic_commits_the_newest_snapshot_at_intervals_whether_or_not_a_checkpoint_completed() -> None:
    group = Group(PERIODIC)
    group.snapshot(0, 5)
    group.tick(4)
    assert group.broker.sent == []
    group.snapshot(1, 7)
    group.tick(1)
    assert group.broker.sent == [{P0: 7}]
    group.complete(2, 9)
    assert group.broker.sent == [{P0: 7}]
    group.tick(5)
    assert group.broker.offsets == {P0: 9}


def test_disabled_commits_nothing() -> None:
    group = Group(DISABLED)
    group.complete(0, 5)
    group.tick(100)
    assert group.committer.flush(1)
    assert group.broker.sent == []


def test_restore_commits_the_restored_positions_again_also_backwards() -> None:
    group = Group()
    group.complete(7, 70)
    group.committer.restore(barrier(3, (30,)))
    assert group.broker.sent == [{P0: 70}, {P0: 30}]
    group.complete(4, 40)
    assert group.broker.offsets == {P0: 40}


def test_restore_survives_a_broker_that_is_down() -> None:
    group = Group()
    group.broker.down = True
    group.committer.restore(barrier(3, (30,)))
    group.broker.down = False
    group.tick(1)
    assert group.broker.offsets == {P0: 30}


def test_flush_tries_until_the_commit_succeeds() -> None:
    group = Group()
    group.broker.down = True
    group.complete(0, 5)

    def recover(seconds: float) -> None:
        group.clock.now += seconds
        group.broker.down = group.broker.refused < 4

    group.committer._sleep = recover
    assert group.committer.flush(30)
    assert group.broker.offsets == {P0: 5}


def test_flush_gives_up_at_its_timeout_and_says_so() -> None:
    group = Group()
    group.broker.down = True
    group.complete(0, 5)
    started = group.clock.now
    assert not group.committer.flush(3)
    assert group.clock.now - started == pytest.approx(3, abs=0.5)
    assert Group().committer.flush(0)


def test_flush_commits_the_newest_positions_of_a_periodic_group() -> None:
    group = Group(PERIODIC)
    group.snapshot(0, 5)
    assert group.committer.flush(1)
    assert group.broker.offsets == {P0: 5}


def test_sources_that_share_a_group_show_the_lower_position() -> None:
    broker, clock = Broker(), HandClock()
    committer = OffsetCommitter([GroupSource("g", (0, 1), broker.commit)], clock)
    committer.snapshot(barrier(0, (5, 9), (7, 3)))
    committer.checkpoint_complete(0)
    assert broker.sent == [{P0: 5, P1: 3}]


def test_group_that_fails_does_not_hold_back_another() -> None:
    bad, good = Broker(), Broker()
    bad.down = True
    sources = [GroupSource("bad", (0,), bad.commit), GroupSource("good", (1,), good.commit)]
    committer = OffsetCommitter(sources, HandClock())
    committer.snapshot(barrier(0, (5,), (6,)))
    committer.checkpoint_complete(0)
    assert good.offsets == {P0: 6}
    assert committer.committed() == {"bad": {}, "good": {P0: 6}}


def test_source_that_has_delivered_nothing_commits_nothing() -> None:
    group = Group()
    group.committer.snapshot(Barrier(0, 0, 0, (None,)))
    group.committer.checkpoint_complete(0)
    assert group.broker.sent == []
    assert group.count("commits_waiting") == 0


def test_close_lets_go_once_and_nothing_is_sent_after_it() -> None:
    group = Group()
    group.committer.close()
    group.committer.close()
    group.complete(0, 5)
    assert (group.broker.closed, group.broker.sent) == (1, [])


STEPS = st.lists(
    st.one_of(
        st.just(("snapshot", 0)),
        st.tuples(st.just("complete"), st.integers(0, 30)),
        st.tuples(st.just("tick"), st.integers(0, 70)),
        st.tuples(st.just("down"), st.integers(0, 1)),
    ),
    max_size=60,
)


@given(steps=STEPS, mode=st.sampled_from([ON_CHECKPOINTS, PERIODIC]))
def test_group_only_moves_forward_and_arrives_whatever_happens(
    steps: list[tuple[str, int]], mode: OffsetCommitMode
) -> None:
    group, epoch, completed = Group(mode), -1, -1
    for step, number in steps:
        if step == "snapshot":
            epoch += 1
            group.snapshot(epoch, epoch * 10)
        elif step == "complete" and number <= epoch:
            completed = max(completed, number)
            group.committer.checkpoint_complete(number)
        elif step == "tick":
            group.tick(number)
        elif step == "down":
            group.broker.down = bool(number)
    group.broker.down = False
    assert group.committer.flush(1)
    sent = [offsets[P0] for offsets in group.broker.sent]
    assert sent == sorted(sent)
    last = completed if mode is ON_CHECKPOINTS else epoch
    assert group.broker.offsets == ({P0: last * 10} if last >= 0 else {})


def test_periodic_interval_can_be_chosen() -> None:
    broker, clock = Broker(), HandClock()
    source = GroupSource("g", (0,), broker.commit, PERIODIC, timedelta(milliseconds=500))
    committer = OffsetCommitter([source], clock)
    committer.snapshot(barrier(0, (5,)))
    clock.now += 0.5
    committer.tick()
    assert broker.offsets == {P0: 5}
