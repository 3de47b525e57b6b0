"""Runs beyond one machine, on Dask ``distributed``: keys, what a worker offers, the parts of a run, and the files that travel."""
