"""The tools that a model may call, and where their definitions come from."""
