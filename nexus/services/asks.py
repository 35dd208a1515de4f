"""Moved."""

from nexus.services.requests.envelope import RequestSettings as RequestSettings
from nexus.services.requests.envelope import read_message as read_message
