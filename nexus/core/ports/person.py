"""The stores of facts and constraints, and both as the context builder and the tools use them (contract §15)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nexus.core.models import Row
from nexus.core.person import Constraint, Fact, Statement


class FactStore(Protocol):
    """Statements about persons, one document each: the fields of `nexus.core.person.Statement`.

    - A statement is unique by (`owner_key`, `id`), and never changes.
    - Every read names an owner and returns documents of that owner only, without `_id`.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    async def add_statements(self, owner_key: str, statements: Sequence[Statement]) -> int:
        """Keep these statements; returns how many are new."""

    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` statements, the latest first by `said_at`, then by `id`."""

    async def count_statements(self, owner_key: str) -> int:
        """How many statements there are of the owner."""


class ConstraintStore(Protocol):
    """Constraints, one document for each place: an owner, one of its sessions, or one of its runs.

    `place` is such as `nexus.services.person.constraint_changes.place_of` gives. Errors as for `FactStore`.
    """

    async def find_constraints(self, owner_key: str, places: Sequence[str]) -> list[Row]:
        """The documents of these places, those that are there: `owner_key`, `place`, `document` and `revision`."""

    async def list_constraints(self, owner_key: str, *, limit: int, after: str = "") -> list[Row]:
        """Up to `limit` documents of the owner, by place, of those behind `after`, as `find_constraints` gives them."""

    async def put_constraints(self, owner_key: str, place: str, document: Mapping[str, Any], revision: int) -> bool:
        """Keep the document in place of the one with that `revision`; 0 where there is none yet. It gets the next one.

        False, and no change, when another was kept in between.
        """


class FactSource(Protocol):
    """The facts as contexts and tools use them."""

    async def facts(self, owner_key: str) -> list[Fact]:
        """The owner's facts by topic and sub-topic, the same for every order of statements.

        Those that held before, or never had enough support, are among them (`Fact.holds`). Changes that this replica
        has accepted before are in them.

        Raises:
            StoreUnavailableError: they cannot be read now.
        """

    async def remember(  # noqa: PLR0917  # the arguments of the tool, and where they come from
        self,
        owner_key: str,
        session_id: str,
        call_id: str,
        topic: str,
        value: str,
        sub_topic: str = "",
        evidence: Sequence[str] = (),
    ) -> list[Fact]:
        """Keep an explicit statement, once for each `call_id`. Returns the facts of its topic and sub-topic then.

        Raises:
            ValueError: a text is empty or too long; it names the field and what is allowed.
            StoreRejectedError: the owner has too many statements.
            StoreUnavailableError: it may be kept or not.
        """


class ConstraintSource(Protocol):
    """The constraints as contexts and tools use them."""

    async def constraints(self, owner_key: str, session_id: str, run_id: str) -> list[Constraint]:
        """The constraints in force for a run: the owner's, then the session's, then the run's, as they were set.

        Changes that this replica has accepted before are among them.

        Raises:
            StoreUnavailableError: they cannot be read now.
        """

    async def pin(
        self, owner_key: str, session_id: str, run_id: str, given: Mapping[str, Any], *, message_id: str = ""
    ) -> tuple[Constraint, int]:
        """Set the constraint that `{text, kind?, scope?}` says; returns it, and how many are in force for the run.

        One that is in force stays as it is, and so does one that this message has set before.

        Raises:
            ValueError: it is none, or there are too many; what is allowed.
            StoreUnavailableError, StoreRejectedError: it is not stored.
        """
