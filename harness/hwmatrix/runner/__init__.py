"""In the image: a warm parent, and one forked child a cell."""
