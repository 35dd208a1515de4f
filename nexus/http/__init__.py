"""The HTTP port: health and metrics (contract §10)."""
