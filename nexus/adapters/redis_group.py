"""Moved."""

from nexus.adapters.redis.consumer_group import GroupSettings as GroupSettings
