"""The resource pool: models that several parts of a program share."""
