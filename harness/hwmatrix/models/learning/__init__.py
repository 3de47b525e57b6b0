"""Tiny models that have learned a task with a known answer: what they are taught, how, and how well they know it."""
