"""Where a run belongs: to which session, and to which agent (CONTRACT §2).

Results name their run alone, and may come before its input is written, or to a replica that has not heard of it. So
whoever builds the first context of a run says so in the ledger, which every replica can ask, also while the store is
away. Of several that ask under one run id the first counts.
"""

import hashlib
import json
from collections import OrderedDict
from typing import Final

from nexus.core.compact_json import compact
from nexus.core.errors import BusUnavailableError, StoreUnavailableError
from nexus.core.ports import MessageStore, RequestLedger, RunOrigin
from nexus.services.context.request import DEFAULT_SESSION

_KNOWN_RUNS: Final = 10_000
# Of nearly all, so it is kept once.
_MAIN: Final = RunOrigin(DEFAULT_SESSION)


class RunOrigins:
    """What is known of runs: in this process, in the ledger, in the store."""

    def __init__(self, store: MessageStore, ledger: RequestLedger | None = None) -> None:
        self._store = store
        self._ledger = ledger
        self._known: OrderedDict[str, RunOrigin] = OrderedDict()

    def remember(self, owner_key: str, run_id: str, origin: RunOrigin) -> RunOrigin:
        """Know a run that was heard of, unless it is known. Returns what is known of it."""
        run = _run(owner_key, run_id)
        known = self._known.setdefault(run, _MAIN if origin == _MAIN else origin)
        self._known.move_to_end(run)
        if len(self._known) > _KNOWN_RUNS:
            self._known.popitem(last=False)
        return known

    async def begin(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Say where a run belongs that is asked for. Returns what the first has said who asked for it."""
        if self._ledger is None:
            return self.remember(owner_key, run_id, origin)
        mine = compact([origin.session_id, origin.sub_agent])
        try:
            first = await self._ledger.keep_first(_key(owner_key, run_id), mine, keep_ms)
        except BusUnavailableError:
            return self.remember(owner_key, run_id, origin)
        return self._learn(owner_key, run_id, RunOrigin(*json.loads(first)))

    async def find(self, owner_key: str, run_id: str) -> RunOrigin:
        """Where a run belongs: to the main agent in the default session, if nobody knows.

        Raises:
            StoreUnavailableError: somebody may know who did not answer.
        """
        return await self.known(owner_key, run_id) or _MAIN

    async def known(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where a run belongs; None if nobody knows. Raises as `find` does."""
        known = self._known.get(_run(owner_key, run_id))
        found = known or await self._kept(owner_key, run_id) or await self._store.find_origin(owner_key, run_id)
        return self._learn(owner_key, run_id, found) if found else None

    async def _kept(self, owner_key: str, run_id: str) -> RunOrigin | None:
        if self._ledger is None:
            return None
        try:
            kept = await self._ledger.kept(_key(owner_key, run_id))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"where the run belongs: {error}") from error
        return RunOrigin(*json.loads(kept)) if kept else None

    def _learn(self, owner_key: str, run_id: str, origin: RunOrigin) -> RunOrigin:
        self._known.pop(_run(owner_key, run_id), None)
        return self.remember(owner_key, run_id, origin)


def _run(owner_key: str, run_id: str) -> str:
    # One text takes half the memory of two, and is that of no other run.
    return f"{len(owner_key)} {owner_key}{run_id}"


def _key(owner_key: str, run_id: str) -> str:
    return hashlib.sha256(compact(["origin", owner_key, run_id])).hexdigest()
