"""Named points at the durable steps of the protocol, where a test may crash the driver.

Off (always, outside tests) a point costs one comparison. Only :mod:`lockstep.testing` installs a hook.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Tell the installed hook, if there is one, that execution is at ``point``."""
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Install ``hook``; ``None`` turns failpoints off. Called by :mod:`lockstep.testing` alone."""
    global _hook
    _hook = hook
