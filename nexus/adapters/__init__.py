"""The outside world, one technology a file. Foreign exceptions end here."""
