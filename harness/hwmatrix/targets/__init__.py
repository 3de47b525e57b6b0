"""How a model runs on a target: one module a backend behind one small protocol, one explicit lazy table."""
