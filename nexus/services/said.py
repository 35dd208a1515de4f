"""When something was said, where what was said later counts."""

from datetime import datetime, timedelta
from typing import Final

from nexus.core.models import Message, utc_now

# A sender whose clock is further ahead must not have the last word until then.
_MOST_AHEAD: Final = timedelta(seconds=300)


def said_at(message: Message) -> datetime:
    """The message's own time; now, where its sender's clock is more than 300 s ahead."""
    now = utc_now()
    return now if message.timestamp > now + _MOST_AHEAD else message.timestamp
