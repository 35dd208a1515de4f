"""Texts: escaping, sentences, digests, prompts to a model and checks of its replies. Pure."""
