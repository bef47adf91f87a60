"""The process that :class:`~lockstep.testing.SinkContract` kills: prepares epochs, and commits them one after the other.

``python -m lockstep.testing.contract_process SETTINGS``, with JSON as the suite writes it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

from lockstep.testing.contract import Driver, Life, SinkContract
from lockstep.testing.failpoints import kill_process_group


def main(settings: dict[str, Any]) -> None:
    threading.Thread(target=_die_with_the_suite, daemon=True).start()
    life = Life(_contract(settings), settings["target"], settings["staging"], settings["lineage"])
    driver = Driver(life, life.contract.make_sink(life.target), token=1)
    driver.open("contract", returning=False)
    prepared = [driver.prepare(epoch, 1000) for epoch in range(6)]
    driver.commit(prepared[0])
    told = [{"epoch": one.epoch, "id": one.attempt.id, "handle": one.handle} for one in prepared]
    unfinished = Path(settings["tell"] + ".tmp")
    unfinished.write_text(json.dumps(told))
    unfinished.rename(settings["tell"])
    for one in prepared[1:]:
        driver.try_commit(one)
    threading.Event().wait()  # the suite kills this process, during or after the commits


def _contract(settings: dict[str, Any]) -> SinkContract:
    """The user's subclass, from the file that it is in."""
    spec = importlib.util.spec_from_file_location("lockstep_contract_under_test", settings["file"])
    if spec is None or spec.loader is None:
        raise ImportError(f"{settings['file']} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for name in settings["class"].split("."):
        found = getattr(found, name)
    contract: SinkContract = found()
    return contract


def _die_with_the_suite() -> None:
    sys.stdin.read()
    kill_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
