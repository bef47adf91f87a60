"""Named points at the durable steps of the protocol, where a test may crash the driver.

Off (always, outside tests) a point costs one comparison. Only :mod:`lockstep.testing` installs a hook: in the driver,
or, by way of the operators that are made from then on, in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], None]

_hook: Hook | None = None
_hook_of_workers: Hook | None = None


def reach(point: str) -> None:
    """Tell the installed hook, if there is one, that execution is at ``point``."""
    if _hook is not None:
        _hook(point)


def install(hook: Hook | None) -> None:
    """Install ``hook``; ``None`` turns failpoints off. Called by :mod:`lockstep.testing` alone."""
    global _hook
    _hook = hook


def install_in_workers(hook: Hook | None) -> None:
    """What new operators carry to their workers, and install there; it must be picklable."""
    global _hook_of_workers
    _hook_of_workers = hook


def hook_of_workers() -> Hook | None:
    """For an operator that is being made."""
    return _hook_of_workers
