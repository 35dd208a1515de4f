"""Moved."""

from nexus.services.requests.leases import Leases as Leases
