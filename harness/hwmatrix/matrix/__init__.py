"""What to test, and where: matrix.yaml, read once into a frozen specification, and the plan that comes from it."""
