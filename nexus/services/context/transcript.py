"""Moved."""

from nexus.services.history.transcript import SPEAKERS as SPEAKERS
from nexus.services.history.transcript import Speaker as Speaker
from nexus.services.history.transcript import TranscriptMessage as Said
from nexus.services.history.transcript import named_tool as named_tool
from nexus.services.history.transcript import transcript_of_rows as said_in_rows
from nexus.services.history.transcript import transcript_of_run as said_in_run
from nexus.services.history.transcript import window_start as window_start

__all__ = [
    "SPEAKERS",
    "Said",
    "Speaker",
    "named_tool",
    "said_in_rows",
    "said_in_run",
    "window_start",
]
