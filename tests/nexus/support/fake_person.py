"""Facts and constraints in memory, with the guarantees of `FactStore` and `ConstraintStore`."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from nexus.core.models import Row
from nexus.core.person import Statement
from tests.nexus.support.stored import stored


class FakeFacts:
    """`nexus.core.ports.FactStore` in memory; `ask` is called with the name of every operation."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self.kept: dict[tuple[str, str], Row] = {}

    async def add_statements(self, owner_key: str, statements: Sequence[Statement]) -> int:
        """Keep these statements; returns how many are new."""
        self._ask("add_statements")
        new = {(owner_key, each.id): {**each.model_dump(), "owner_key": owner_key} for each in reversed(statements)}
        added = new.keys() - self.kept.keys()
        self.kept = new | self.kept
        return len(added)

    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` statements, the latest first."""
        self._ask("statements")
        own = [row for (owner, _), row in self.kept.items() if owner == owner_key]
        return deepcopy(sorted(own, key=lambda row: (row["said_at"], row["id"]), reverse=True)[:limit])

    async def count_statements(self, owner_key: str) -> int:
        """How many statements there are of the owner."""
        self._ask("count_statements")
        return sum(owner == owner_key for owner, _ in self.kept)


class FakeConstraints:
    """`nexus.core.ports.ConstraintStore` in memory; `ask` is called with the name of every operation."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self.kept: dict[tuple[str, str], Row] = {}

    async def find_constraints(self, owner_key: str, places: Sequence[str]) -> list[Row]:
        """The documents of these places, those that are there."""
        self._ask("find_constraints")
        return deepcopy([row for (owner, place), row in self.kept.items() if owner == owner_key and place in places])

    async def list_constraints(self, owner_key: str, *, limit: int, after: str = "") -> list[Row]:
        """Up to `limit` documents of the owner, by place, of those behind `after`."""
        self._ask("list_constraints")
        kept = [row for (owner, place), row in sorted(self.kept.items()) if owner == owner_key and place > after]
        return deepcopy(kept[:limit])

    async def put_constraints(self, owner_key: str, place: str, document: Mapping[str, Any], revision: int) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        self._ask("put_constraints")
        known = self.kept.get((owner_key, place))
        if (known["revision"] if known else 0) != revision:
            return False
        written = stored({"document": dict(document), "revision": revision + 1})
        self.kept[owner_key, place] = {"owner_key": owner_key, "place": place, **written}
        return True
