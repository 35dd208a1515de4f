"""Moved."""

from nexus.services.requests.envelope import answer as answer
from nexus.services.requests.envelope import error_answer as error_answer
