"""A document as a store keeps it."""

from typing import Any

Row = dict[str, Any]
