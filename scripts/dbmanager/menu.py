"""The menu: the same operations for a person at a terminal.

Wrong input is answered with what is allowed and asked again. An error of an item ends the item, not the menu. Ctrl-C,
Ctrl-D and the end of the input leave it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pymongo.errors import PyMongoError

from . import operations
from .documents import FORMATS, Criteria
from .operations import Session
from .server import NobodyToAskError, Refusal, checked_database_name, collections, explain, one_line
from .terminal import line

_ENVIRONMENTS = {"": "development", "1": "development", "2": "production"}
_MAX_DAYS = 36_500


class Menu:
    """Nine items, asked for until the operator leaves."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._terminal = session.terminal
        self._items: tuple[tuple[str, Callable[[], None]], ...] = (
            ("List databases", partial(operations.databases, session)),
            ("List collections", partial(operations.collections, session)),
            ("Show database statistics", partial(operations.stats, session)),
            ("Select database", self._select),
            ("Cleanup collection", self._cleanup),
            ("Export collection", self._export),
            ("Analyze collection", self._analyze),
            ("Initialize configurations", self._init_config),
            ("Exit", self._leave),
        )

    def run(self) -> None:
        """Ask and do, until the operator leaves."""
        try:
            while True:
                self._show()
                self._do(self._items[self._choice()][1])
        except (EOFError, KeyboardInterrupt):
            self._terminal.say("", "Goodbye.")

    def _show(self) -> None:
        lines = ["", "Nexus database manager", f"  server    {self._session.server}"]
        lines += [f"  database  {self._session.database}", ""]
        lines += [f"  {number} {title}" for number, (title, _) in enumerate(self._items, 1)]
        self._terminal.say(*(line(text) for text in lines))

    def _choice(self) -> int:
        numbers = [str(number) for number in range(1, len(self._items) + 1)]
        return int(self._one_of(f"Choice [1-{len(numbers)}]:", numbers)) - 1

    def _do(self, item: Callable[[], None]) -> None:
        try:
            item()
        except NobodyToAskError:
            raise
        except Refusal as refusal:
            self._error(str(refusal))
        except PyMongoError as error:
            self._error(explain(error))

    def _error(self, text: str) -> None:
        self._terminal.remark(f"Not done: {one_line(text)}")

    def _one_of(self, question: str, allowed: list[str], default: str | None = None) -> str:
        while True:
            answer = self._terminal.ask(question)
            if not answer and default is not None:
                return default
            if answer in allowed:
                return answer
            self._terminal.remark(f"Please answer with one of: {', '.join(allowed)}")

    def _collection(self) -> str | None:
        """A collection by its number or name; None if the operator wants none of them after all."""
        names = [each.name for each in collections(self._session.store)]
        if not names:
            raise Refusal(f"database {self._session.database!r} has no collections")
        for number, name in enumerate(names, 1):
            self._terminal.say(line(f"  {number} {name}"))
        numbered = {str(number): name for number, name in enumerate(names, 1)}
        answer = self._one_of("Collection (number or name, empty for none):", [*numbered, *names], default="")
        return answer if answer in names else numbered.get(answer)

    def _criteria(self) -> Criteria:
        self._terminal.say("Which documents? They must meet every answer; an empty one means any.")
        days = self._days()
        role, run, owner, session = (
            self._terminal.ask(f"{what}:") or None for what in ("Role", "Run id", "Owner key", "Session id")
        )
        return Criteria(days, role, run, owner, session)

    def _days(self) -> int | None:
        while True:
            answer = self._terminal.ask("Older than how many days:")
            if not answer:
                return None
            if answer.isascii() and answer.isdecimal() and int(answer) <= _MAX_DAYS:
                return int(answer)
            self._terminal.remark(f"Please answer with a whole number from 0 to {_MAX_DAYS}, or nothing")

    def _select(self) -> None:
        name = self._terminal.ask("Database (empty for no change):")
        if not name:
            return
        self._session.database = checked_database_name(name)
        exists = name in self._session.client.list_database_names()
        later = "" if exists else " It does not exist yet: it will be created by the first write."
        self._terminal.say(line(f"Selected {name}.{later}"))

    def _cleanup(self) -> None:
        collection = self._collection()
        if collection is None:
            return
        criteria = self._criteria()
        everything = not criteria.given
        if everything:
            self._terminal.say("No criterion: that means every document.")
        operations.cleanup(self._session, collection, criteria, everything=everything)

    def _export(self) -> None:
        collection = self._collection()
        if collection is None:
            return
        form = FORMATS[self._one_of("Format (jsonl or csv) [jsonl]:", [*FORMATS], "jsonl")]
        criteria = self._criteria()
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        proposed = f"{self._session.database}-{collection}-{moment}.{form}"
        output = self._terminal.ask(f"File [{proposed}]:") or proposed
        output = str(Path(output).expanduser())
        operations.export_collection(self._session, collection, criteria, output=output, form=form)

    def _analyze(self) -> None:
        collection = self._collection()
        if collection is not None:
            operations.analyze_collection(self._session, collection)

    def _init_config(self) -> None:
        answer = self._terminal.ask("Environment: 1 development, 2 production, or a name [1]:")
        environment = _ENVIRONMENTS.get(answer, answer)
        operations.init_config(self._session, environment, ask=True)

    def _leave(self) -> None:
        raise EOFError
