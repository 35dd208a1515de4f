"""Which documents are meant: criteria joined by AND.

Values are only ever compared as plain strings, so an owner called `{"$ne": ""}` matches nobody else. Age compares BSON
dates; a row whose timestamp is text, a list or missing is never old.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

# In an array every element is compared, so a list of dates would pass for a date.
_DATE: dict[str, Any] = {"$type": "date", "$not": {"$type": "array"}}
_NO_DATE = {"$or": [{"timestamp": {"$not": {"$type": "date"}}}, {"timestamp": {"$type": "array"}}]}


@dataclass(frozen=True)
class Criteria:
    """What a document must be to be meant; None: anything.

    Attributes:
        older_than: age in days that the `timestamp` must exceed.
        role: compared without case.
    """

    older_than: int | None = None
    role: str | None = None
    run: str | None = None
    owner: str | None = None
    session: str | None = None

    @property
    def given(self) -> dict[str, str | int]:
        """The criteria that say something."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def query(self, now: datetime) -> dict[str, Any]:
        """The MongoDB filter; `{}` without criteria."""
        if self.older_than is None:
            return self._strings()
        return self._strings() | {"timestamp": {"$lt": now - timedelta(days=self.older_than), **_DATE}}

    def skipped_query(self) -> dict[str, Any] | None:
        """The documents that only their unusable timestamp keeps from being meant; None where age is no criterion."""
        return None if self.older_than is None else self._strings() | _NO_DATE

    def _strings(self) -> dict[str, Any]:
        named = {"run_id": self.run, "owner_key": self.owner, "session_id": self.session}
        query: dict[str, Any] = {field: {"$eq": value} for field, value in named.items() if value is not None}
        if self.role is not None:
            # `$` alone would also match before a line end.
            query["role"] = {"$regex": f"^{re.escape(self.role)}$(?!\n)", "$options": "i"}
        return query
