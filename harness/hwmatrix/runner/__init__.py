"""Inside the image: a warm parent, and one forked child per cell."""
