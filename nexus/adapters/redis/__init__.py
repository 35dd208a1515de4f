"""Adapters on Redis: bus, ledger, outbox and dead letters."""
