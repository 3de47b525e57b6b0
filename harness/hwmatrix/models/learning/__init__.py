"""Tiny models that have learnt a task with a known answer: what they are taught, how, and how well they know it."""
