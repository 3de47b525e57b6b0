"""How a model runs on a target: one module per backend behind one small protocol, and a lazy table of the backends."""
