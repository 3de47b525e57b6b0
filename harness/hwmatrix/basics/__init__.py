"""What every part may use: files, text, the cache folder."""
