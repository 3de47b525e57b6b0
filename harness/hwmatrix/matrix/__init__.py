"""What to test and where: reads matrix.yaml into a frozen specification, and makes plans from it."""
