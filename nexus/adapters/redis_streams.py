"""Moved."""

from nexus.adapters.redis.streams import RedisStreamsBus as RedisStreamsBus
