"""Moved."""

from nexus.adapters.redis.cluster import ClusterRedis as ClusterRedis
