"""Moved."""

from nexus.services.text.tool_outcomes import COUNT_ROOM as COUNTED
from nexus.services.text.tool_outcomes import call_and_result as told
from nexus.services.text.tool_outcomes import call_with_arguments as called
from nexus.services.text.tool_outcomes import describe_calls as tell
from nexus.services.text.tool_outcomes import read_result as read_result
from nexus.services.text.tool_outcomes import result_of_call as resulted
from nexus.services.text.tool_outcomes import tools_used as tools_used

__all__ = ["COUNTED", "called", "read_result", "resulted", "tell", "told", "tools_used"]
