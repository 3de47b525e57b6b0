"""Source code from templates: tests of models, and scripts that reproduce a failing cell."""
