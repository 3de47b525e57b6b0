"""The errors of this machine and of a database in one report: HardwareCompatibilityReporter."""
