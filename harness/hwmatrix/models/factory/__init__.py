"""Builds a tiny model of an architecture from its type alone, with generic rules and overrides for single types, both as data.

``rules.yaml`` has the rules, ``overrides/*.yaml`` what single types need and why. ``shrink`` makes a configuration small, ``synthesis``
generates inputs, ``make`` combines them. If a model cannot be built, the error is a :class:`hwmatrix.errors.FactoryError`: the fault is
ours, never the hardware's.
"""
