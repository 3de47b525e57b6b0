"""Who runs it: images, containers, virtual environments, and what a person sees meanwhile."""
