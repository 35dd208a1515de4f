"""Moved."""

from nexus.adapters.redis.urls import RedisUrl as RedisUrl
from nexus.adapters.redis.urls import parse_redis_url as parse_redis_url
