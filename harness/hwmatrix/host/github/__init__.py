"""The matrix on GitHub Actions: workflow files from matrix.yaml, and the commands that their jobs call."""
