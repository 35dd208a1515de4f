"""Text: escaping what is not ours, sentences, digests, and checks of what a model has written."""
