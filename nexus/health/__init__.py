"""Health and metrics over HTTP: `/livez`, `/readyz` and `/metrics` on one small port (CONTRACT §10)."""

from nexus.health.http import Limits, serving
from nexus.health.report import Check, Health, Recent, Reply

__all__ = ["Check", "Health", "Limits", "Recent", "Reply", "serving"]
