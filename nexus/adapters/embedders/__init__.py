"""Embedders of long-term memory (contract §14): vectors of texts, and their signs."""
