"""Moved."""

from nexus.services.requests.tool_calls import MOST_CALLS as MOST_CALLS
from nexus.services.requests.tool_calls import ToolCallService as ToolCallService
