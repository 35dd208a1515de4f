"""The history of a scenario, written as it happens and read back to be judged."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class History:
    """Events as JSON lines in a file. One monotonic clock for all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")

    def note(self, kind: str, **fields: Any) -> float:
        """Write an event down. Returns when it happened."""
        at = time.monotonic()
        self._file.write(json.dumps({"at": round(at, 6), "type": kind, **fields}) + "\n")
        return at

    def happened(self, what: str, **fields: Any) -> float:
        """Write down what was done to the system. Returns when."""
        return self.note("info", what=what, wall=datetime.now(UTC).isoformat(), **fields)

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def events(self) -> list[dict[str, Any]]:
        """Every event until now."""
        if not self._file.closed:
            self._file.flush()
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
