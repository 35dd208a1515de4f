"""What was said: rows, their order, and the services that record and read them."""
