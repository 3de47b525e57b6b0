"""Models and hardware together: HardwareAwareModelClassifier."""
