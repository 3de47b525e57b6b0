"""Builds a tiny model of an architecture from its type alone: generic rules, and overrides for single types, as data.

``rules.yaml`` has the rules, ``overrides/*.yaml`` what single types need and why, ``shrink`` makes a configuration small, ``synthesis``
makes up its inputs, ``make`` brings them together. What cannot be built is a :class:`hwmatrix.errors.FactoryError`: ours, never the
hardware's.
"""
