"""What contexts cost, asked from outside: `make bench`."""
