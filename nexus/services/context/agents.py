"""Moved."""

from nexus.services.history.agents import AGENT_ID as AGENT_ID
from nexus.services.history.agents import INTERNAL as INTERNAL
from nexus.services.history.agents import MAIN as MAIN
from nexus.services.history.agents import Agent as Agent
from nexus.services.history.agents import Kind as Kind
from nexus.services.history.agents import internal_marks as internal_marks
from nexus.services.history.agents import is_internal as is_internal
from nexus.services.history.agents import missing_role as missing_role
from nexus.services.history.agents import named_agent as named_agent
from nexus.services.history.agents import read_agent as read_agent
