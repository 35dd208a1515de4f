"""The context: what a model is given to read, and how it is made. Pure but for `builder`."""
