"""The host side of a run: images, containers, virtual environments, and console output."""
