"""Moved."""

from nexus.adapters.redis.pubsub import RedisPubSubBus as RedisPubSubBus
from nexus.adapters.redis.pubsub import RedisSubscription as RedisSubscription
