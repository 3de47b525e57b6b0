"""What to do about it: the catalogue of error types and their recommendations."""
