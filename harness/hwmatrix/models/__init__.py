"""Models: families, recipes, inputs, and the bundles that make runs comparable."""
