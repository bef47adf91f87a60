"""The protocol's real code on a simulated world, driven step by step. Where to look:

* ``world``: what outlives a driver (directory, tables, consumer group, clock), and a driver as one process on it;
* ``steps``: everything a driver does that others can see, each a step at which it may crash, pause or fail;
* ``invariants``: what must be true after every step, and at the end;
* ``story``: how a schedule is told;
* ``exhaustive``: one driver after the other, every crash point, notification and outcome;
* ``stage``: several drivers at once, paused and resumed by a plan;
* ``plans``: the plans: every pause of one driver under another, and random ones from a seed;
* ``mutants``: deliberate mistakes in the protocol, each of which the simulation must notice.

``python -m unit_tests.simulation`` (``make simulate``) plays it all.
"""

from unit_tests.simulation.world import (
    Crash,
    Driver,
    World,
    crash_at,
    doing_at,
    position,
    rows_of,
    rows_up_to,
)

__all__ = ["Crash", "Driver", "World", "crash_at", "doing_at", "position", "rows_of", "rows_up_to"]
