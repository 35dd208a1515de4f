"""Where a run belongs: to which session, and to which agent (CONTRACT §2).

Results name their run alone, and may come before its input is written, or to a replica that has not heard of it. So
whoever builds the first context of a run says so in the ledger, which every replica can ask, also while the store is
away. Of several that ask under one run id the first counts.
"""

import hashlib
import json
from typing import Final

from nexus.core.compact_json import compact
from nexus.core.errors import BusUnavailableError, StoreUnavailableError
from nexus.core.ports import MessageStore, RequestLedger, RunOrigin
from nexus.services.context.request import DEFAULT_SESSION

# Results of a run come within minutes. Who hears of one later asks the ledger, in a round trip for it alone.
_KNOWN_RUNS: Final = 5_000
# Of nearly all, so it is kept once.
_MAIN: Final = RunOrigin(DEFAULT_SESSION)


class RunOrigins:
    """What is known of runs: in this process of the newest 5,000 to 10,000, in the ledger, in the store."""

    def __init__(self, store: MessageStore, ledger: RequestLedger | None = None) -> None:
        self._store = store
        self._ledger = ledger
        # Two dictionaries that take turns: one that can let go its oldest would take twice the memory.
        self._known: dict[str, RunOrigin] = {}
        self._known_before: dict[str, RunOrigin] = {}

    def remember(self, owner_key: str, run_id: str, origin: RunOrigin) -> RunOrigin:
        """Know a run that was heard of, unless it is known. Returns what is known of it."""
        run = _run(owner_key, run_id)
        return self._find(run) or self._keep(run, origin)

    async def begin(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Say where a run belongs that is asked for. Returns what the first has said who asked for it."""
        if self._ledger is None:
            return self.remember(owner_key, run_id, origin)
        mine = compact([origin.session_id, origin.sub_agent])
        try:
            first = await self._ledger.keep_first(_key(owner_key, run_id), mine, keep_ms)
        except BusUnavailableError:
            return self.remember(owner_key, run_id, origin)
        return self._keep(_run(owner_key, run_id), RunOrigin(*json.loads(first)))

    async def find(self, owner_key: str, run_id: str) -> RunOrigin:
        """Where a run belongs: to the main agent in the default session, if nobody knows.

        Raises:
            StoreUnavailableError: somebody may know who did not answer.
        """
        return await self.known(owner_key, run_id) or _MAIN

    async def known(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where a run belongs; None if nobody knows. Raises as `find` does."""
        run = _run(owner_key, run_id)
        if known := self._find(run):
            return known
        found = await self._kept(owner_key, run_id) or await self._store.find_origin(owner_key, run_id)
        return self._keep(run, found) if found else None

    async def _kept(self, owner_key: str, run_id: str) -> RunOrigin | None:
        if self._ledger is None:
            return None
        try:
            kept = await self._ledger.kept(_key(owner_key, run_id))
        except BusUnavailableError as error:
            raise StoreUnavailableError(f"where the run belongs: {error}") from error
        return RunOrigin(*json.loads(kept)) if kept else None

    def _find(self, run: str) -> RunOrigin | None:
        if known := self._known.get(run):
            return known
        before = self._known_before.get(run)
        # Whoever is asked for stays.
        return self._keep(run, before) if before else None

    def _keep(self, run: str, origin: RunOrigin) -> RunOrigin:
        if len(self._known) >= _KNOWN_RUNS and run not in self._known:
            self._known_before, self._known = self._known, {}
        self._known[run] = kept = _MAIN if origin == _MAIN else origin
        return kept


def _run(owner_key: str, run_id: str) -> str:
    # One text takes half the memory of two, and is that of no other run.
    return f"{len(owner_key)} {owner_key}{run_id}"


def _key(owner_key: str, run_id: str) -> str:
    return hashlib.sha256(compact(["origin", owner_key, run_id])).hexdigest()
