"""Moved."""

from nexus.adapters.redis.client import open_redis as open_redis
from nexus.adapters.redis.errors import repeated as repeated
from nexus.adapters.redis.errors import translated as translated
