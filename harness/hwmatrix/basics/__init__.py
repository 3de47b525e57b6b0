"""Utilities that every part may use: files, text, the cache folder."""
