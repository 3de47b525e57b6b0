"""From a model type alone, a tiny model of that architecture: generic rules, and what single types need besides, as data.

``rules.yaml`` has the rules, ``overrides/*.yaml`` what single types need and why, ``shrink`` makes a configuration small, ``synthesis``
makes up its inputs, ``make`` brings them together. What cannot be built is a :class:`hwmatrix.errors.FactoryError`: ours, never the
hardware's.
"""
