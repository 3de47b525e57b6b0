"""Machines that take jobs: what they are called, what they lack, what lies about on them, which target they would take."""
