"""Moved."""

from nexus.adapters.redis.dead_letters import RedisDeadLetters as RedisDeadLetters
