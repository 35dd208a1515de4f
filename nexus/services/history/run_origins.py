"""The origin of a run: its session and its agent (contract §2).

Results name their run alone, and may come before its input is written, or to a replica that has not heard of the run.
So the replica that builds the first context of a run keeps its origin in the ledger, which every replica can ask, also
while the store is away. Of several origins under one run id the first counts.
"""

import hashlib
import json
from collections import OrderedDict
from typing import Final

from nexus.core.errors import BusUnavailableError, StoreUnavailableError
from nexus.core.ports import MessageStore, RequestLedger, RunOrigin
from nexus.core.wire import compact

DEFAULT_SESSION: Final = "default"
# Results of a run come within minutes. For an older run the ledger is asked, in a round trip of its own.
_KNOWN_RUNS: Final = 5_000
_MAIN: Final = RunOrigin(DEFAULT_SESSION)


class RunOrigins:
    """The origins of runs: of the last 5,000 runs used in this process, in the ledger, in the store."""

    def __init__(self, store: MessageStore, ledger: RequestLedger | None = None) -> None:
        self._store = store
        self._ledger = ledger
        self._known: OrderedDict[tuple[str, str], RunOrigin] = OrderedDict()

    def remember(self, owner_key: str, run_id: str, origin: RunOrigin) -> RunOrigin:
        """Keep the origin of a run in this process, unless one is known. Returns the known one."""
        run = owner_key, run_id
        return self._find(run) or self._keep(run, origin)

    async def begin(self, owner_key: str, run_id: str, origin: RunOrigin, keep_ms: int) -> RunOrigin:
        """Keep the origin of a run in the ledger for `keep_ms`, unless one is kept. Returns the kept one."""
        if self._ledger is None:
            return self.remember(owner_key, run_id, origin)
        mine = compact([origin.session_id, origin.sub_agent])
        try:
            first = await self._ledger.keep_first(_key(owner_key, run_id), mine, keep_ms)
        except BusUnavailableError:
            return self.remember(owner_key, run_id, origin)
        return self._keep((owner_key, run_id), RunOrigin(*json.loads(first)))

    async def find(self, owner_key: str, run_id: str) -> RunOrigin:
        """The origin of a run: the main agent in the default session, if none is known.

        Raises:
            StoreUnavailableError: the ledger or the store did not answer.
        """
        return await self.known(owner_key, run_id) or _MAIN

    async def known(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """The origin of a run; None if none is known. Raises as `find` does."""
        run = owner_key, run_id
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

    def _find(self, run: tuple[str, str]) -> RunOrigin | None:
        if run in self._known:
            self._known.move_to_end(run)
        return self._known.get(run)

    def _keep(self, run: tuple[str, str], origin: RunOrigin) -> RunOrigin:
        self._known[run] = origin
        self._known.move_to_end(run)
        if len(self._known) > _KNOWN_RUNS:
            self._known.popitem(last=False)
        return origin


def _key(owner_key: str, run_id: str) -> str:
    return hashlib.sha256(compact(["origin", owner_key, run_id])).hexdigest()
