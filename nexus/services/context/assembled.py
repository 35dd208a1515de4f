"""Moved."""

from nexus.services.context.blocks import Assembled as Assembled
