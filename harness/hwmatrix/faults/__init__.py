"""What went wrong: the catalogue of errors, what to do about each, and error records."""
