"""Moved."""

from nexus.services.history.tool_calls import ToolCall as ToolCall
from nexus.services.history.tool_calls import annotate as annotate
from nexus.services.history.tool_calls import annotate_stored as annotate_stored
from nexus.services.history.tool_calls import as_id as as_id
from nexus.services.history.tool_calls import as_json as as_json
from nexus.services.history.tool_calls import read_tool_calls as read_tool_calls
