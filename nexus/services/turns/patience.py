"""When a model is asked again that gave no summary, and when no more. Pure.

One that is away is asked again after pauses that double, in the end every ten minutes: one document that it always
refuses must not hold up the others. One that answers with nonsense is asked less and less often, in the end once a day,
and after weeks no more.
"""

from datetime import timedelta
from typing import Any, Final

from nexus.core.models import utc_now
from nexus.core.ports import Row

_LONGEST_DELAY: Final = timedelta(minutes=10)
_LONGEST_PAUSE: Final = timedelta(days=1)
_MOST_DOUBLINGS: Final = 16
# Which is some weeks.
_MOST_ATTEMPTS: Final = 40


def delayed(document: Row, again_s: float) -> dict[str, Any]:
    """What is changed in a document for which the model could not be asked; perhaps because of that document."""
    delays = document.get("delays") or 0
    return {"delays": delays + 1, "due_at": utc_now() + _pause(again_s, delays, _LONGEST_DELAY)}


def refused(document: Row, again_s: float) -> dict[str, Any]:
    """What is changed in a document of which the model had nothing sensible to say."""
    attempts = (document.get("attempts") or 0) + 1
    if attempts >= _MOST_ATTEMPTS:
        return {"attempts": attempts, "work": None, "due_at": None}
    return {"attempts": attempts, "due_at": utc_now() + _pause(again_s, attempts - 1, _LONGEST_PAUSE)}


def _pause(again_s: float, before: int, longest: timedelta) -> timedelta:
    """Twice as long each time; `before` says how often there has been one."""
    return min(timedelta(seconds=again_s * 2 ** min(before, _MOST_DOUBLINGS)), longest)
