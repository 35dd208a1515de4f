"""Moved."""

from nexus.services.context.memory_blocks import GOAL as GOAL
from nexus.services.context.memory_blocks import NOTHING as NOTHING
from nexus.services.context.memory_blocks import Remembered as Remembered
from nexus.services.context.memory_blocks import goal_sources as goal_sources
from nexus.services.context.memory_blocks import goal_text as goal_text
from nexus.services.context.memory_blocks import task_block as task_block
from nexus.services.context.memory_blocks import turns_block as turns_block
from nexus.services.turns.rendering import RememberedTurn as RememberedTurn
from nexus.services.turns.rendering import accumulated as accumulated
from nexus.services.turns.rendering import read_turns as read_turns
from nexus.services.turns.rendering import turns_text as turns_text
